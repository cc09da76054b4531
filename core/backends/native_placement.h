// Placement: where the members of one process set are, seen from this rank.
#pragma once

#include <vector>

#include "base/config.h"
#include "base/types.h"

namespace hvd {

struct Placement {
  std::vector<Rank> members;             // ascending; the index is the set rank
  std::vector<std::vector<Rank>> hosts;  // members of each host that has any, in topology order
  std::vector<std::size_t> lanes;        // arena lanes of the members on my host
  std::size_t my_set_rank = 0;
  std::size_t my_host = 0;   // index into hosts
  std::size_t my_local = 0;  // index into hosts[my_host]
  std::size_t shares = 1;  // ranks of every host that can work side by side: the fewest on any host

  std::size_t size() const { return members.size(); }
  const std::vector<Rank>& my_hosts_members() const { return hosts[my_host]; }
  std::size_t local_size() const { return hosts[my_host].size(); }
  bool spans_hosts() const { return hosts.size() > 1; }
  std::size_t set_rank_of(Rank rank) const;
  std::size_t host_of(Rank rank) const;  // index into hosts
  // The ranks with local index `local`, one per host.
  std::vector<Rank> across_hosts(std::size_t local) const;
};

// This rank must be one of `members`.
Placement place(const Topology& topology, const std::vector<Rank>& members);

}  // namespace hvd
