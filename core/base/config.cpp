#include "base/config.h"

#include <algorithm>

namespace hvd {

std::size_t Topology::host_of(Rank r) const {
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    if (std::binary_search(hosts[host].begin(), hosts[host].end(), r)) return host;
  }
  return hosts.size();
}

std::string Topology::describe(Rank r) const {
  return "Rank " + std::to_string(r) + " on host " + host_name_of(r);
}

}  // namespace hvd
