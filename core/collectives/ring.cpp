// Ring allreduce, ring allgather and chain broadcast as relays: what is sent next is what was
// received.
#include "collectives/ring.h"

#include <array>
#include <numeric>
#include <vector>

#include "collectives/peers.h"
#include "collectives/relay.h"

namespace hvd {

namespace {

constexpr std::size_t kLineBytes = 64;

// To the next rank and from the previous one; the same channel when there are two.
Status connect_neighbours(const Ring& ring, std::array<Channel*, 2>& neighbours) {
  std::vector<Rank> peers{ring.ranks[ring.position(1)]};
  if (ring.size() > 2) peers.push_back(ring.ranks[ring.position(ring.size() - 1)]);
  std::vector<Channel*> channels;
  Status status = connect_peers(ring.links, ring.ranks[ring.me], peers, channels);
  if (status.is_ok()) neighbours = {channels.front(), channels.back()};
  return status;
}

Status drive_one(Flow& flow, WaitControl& wait) {
  const std::array<Flow*, 1> flows{&flow};
  return drive(flows, wait);
}

}  // namespace

Status ring_allreduce(const Ring& ring, const View& view, const Reduction& reduction) {
  std::array<Channel*, 2> neighbours{};
  if (Status status = connect_neighbours(ring, neighbours); !status.is_ok()) return status;
  const std::size_t size = ring.size();
  const std::vector<View> chunks = split_evenly(view, size, kLineBytes);
  const Reduction partial = reduction.unscaled();
  const Reduction last{reduction.dtype, reduction.op, 1.0, reduction.postscale};
  // Steps 0 .. N-2 reduce, N-1 .. 2N-3 gather. Step s sends chunk me-s and receives chunk me-s-1,
  // which step s+1 sends. The reduction that completes a chunk applies the postscale.
  const bool previous_is_lower = ring.position(size - 1) < ring.me;
  std::vector<Reception> receptions;
  for (std::size_t step = 0; step < 2 * (size - 1); ++step) {
    const Reduction* combine = step + 2 < size ? &partial : step + 2 == size ? &last : nullptr;
    receptions.push_back({chunks[ring.position(2 * size - step - 1)], combine, previous_is_lower});
  }
  const View first = chunks[ring.me];
  std::size_t send_bytes = first.bytes;
  for (std::size_t i = 0; i + 1 < receptions.size(); ++i) send_bytes += receptions[i].to.bytes;
  Relay relay(neighbours[0], neighbours[1], first, std::move(receptions), send_bytes);
  return drive_one(relay, ring.wait);
}

Status ring_allgather(const Ring& ring, std::span<const View> blocks) {
  std::array<Channel*, 2> neighbours{};
  if (Status status = connect_neighbours(ring, neighbours); !status.is_ok()) return status;
  const std::size_t size = ring.size();
  std::vector<Reception> receptions;
  std::size_t send_bytes = blocks[ring.me].bytes;
  for (std::size_t step = 1; step < size; ++step) {
    receptions.push_back({blocks[ring.position(size - step)], nullptr, true});
    if (step + 1 < size) send_bytes += receptions.back().to.bytes;
  }
  Relay relay(neighbours[0], neighbours[1], blocks[ring.me], std::move(receptions), send_bytes);
  return drive_one(relay, ring.wait);
}

Status chain_broadcast(const Ring& ring, std::size_t root, const View& view) {
  const std::size_t hops = (ring.me + ring.size() - root) % ring.size();
  const bool sends = hops + 1 < ring.size();
  std::vector<Rank> peers;
  if (sends) peers.push_back(ring.ranks[ring.position(1)]);
  if (hops > 0) peers.push_back(ring.ranks[ring.position(ring.size() - 1)]);
  std::vector<Channel*> channels;
  if (Status status = connect_peers(ring.links, ring.ranks[ring.me], peers, channels);
      !status.is_ok()) {
    return status;
  }
  std::vector<Reception> receptions;
  if (hops > 0) receptions.push_back({view, nullptr, true});
  Relay relay(channels.front(), channels.back(), hops == 0 ? view : View{}, std::move(receptions),
              sends ? view.bytes : 0);
  return drive_one(relay, ring.wait);
}

}  // namespace hvd
