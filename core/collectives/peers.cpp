// Peers: asking for channels in an order that can't deadlock.
#include "collectives/peers.h"

#include <algorithm>
#include <numeric>

namespace hvd {

Status connect_peers(Links& links, Rank me, std::span<const Rank> peers,
                     std::vector<Channel*>& channels) {
  std::vector<std::size_t> order(peers.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::minmax(me, peers[a]) < std::minmax(me, peers[b]);
  });
  channels.assign(peers.size(), nullptr);
  for (const std::size_t i : order) {
    channels[i] = links.data_channel(peers[i]);
    if (channels[i] != nullptr) continue;
    Status failure = links.failure();
    if (!failure.is_ok()) return failure;
    return Status::aborted("There is no data connection to rank " + std::to_string(peers[i]) + ".");
  }
  return Status::ok();
}

}  // namespace hvd
