// Placement: a pure function of topology and process set.
#include "backends/native_placement.h"

#include <algorithm>

namespace hvd {

namespace {

std::size_t index_in(const std::vector<Rank>& ascending, Rank rank) {
  return std::lower_bound(ascending.begin(), ascending.end(), rank) - ascending.begin();
}

}  // namespace

std::size_t Placement::set_rank_of(Rank rank) const { return index_in(members, rank); }

std::size_t Placement::host_of(Rank rank) const {
  std::size_t host = 0;
  while (host < hosts.size() && !std::binary_search(hosts[host].begin(), hosts[host].end(), rank)) {
    ++host;
  }
  return host;
}

std::vector<Rank> Placement::across_hosts(std::size_t local) const {
  std::vector<Rank> ranks;
  for (const auto& host : hosts) ranks.push_back(host[local]);
  return ranks;
}

Placement place(const Topology& topology, const std::vector<Rank>& members) {
  Placement placement;
  placement.members = members;
  placement.my_set_rank = index_in(members, topology.rank);
  for (const auto& host : topology.hosts) {
    std::vector<Rank> here;
    std::vector<std::size_t> lanes;
    for (std::size_t lane = 0; lane < host.size(); ++lane) {
      if (!std::binary_search(members.begin(), members.end(), host[lane])) continue;
      here.push_back(host[lane]);
      lanes.push_back(lane);
    }
    if (here.empty()) continue;
    const auto me = std::find(here.begin(), here.end(), topology.rank);
    if (me != here.end()) {
      placement.my_host = placement.hosts.size();
      placement.my_local = me - here.begin();
      placement.lanes = std::move(lanes);
    }
    placement.hosts.push_back(std::move(here));
  }
  placement.shares = placement.hosts.front().size();
  for (const auto& host : placement.hosts) {
    placement.shares = std::min(placement.shares, host.size());
  }
  return placement;
}

}  // namespace hvd
