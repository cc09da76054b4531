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

class RingReduction final : public Flow {
 public:
  RingReduction(const Ring& ring, const std::array<Channel*, 2>& neighbours, const View& view,
                const Reduction& reduction)
      : partial_(reduction.unscaled()),
        last_{reduction.dtype, reduction.op, 1.0, reduction.postscale},
        relay_(make_relay(ring, neighbours, split_evenly(view, ring.size(), kLineBytes))) {}

  bool advance() override { return relay_.advance(); }
  bool done() const override { return relay_.done(); }
  void watch(std::vector<Watch>& watches) const override { relay_.watch(watches); }

 private:
  // Steps 0 .. N-2 reduce, N-1 .. 2N-3 gather. Step s sends chunk me-s and receives chunk me-s-1,
  // which step s+1 sends. The reduction that completes a chunk applies the postscale.
  Relay make_relay(const Ring& ring, const std::array<Channel*, 2>& neighbours,
                   const std::vector<View>& chunks) const {
    const std::size_t size = ring.size();
    const bool previous_is_lower = ring.position(size - 1) < ring.me;
    std::vector<Reception> receptions;
    for (std::size_t step = 0; step < 2 * (size - 1); ++step) {
      const Reduction* combine = step + 2 < size ? &partial_ : step + 2 == size ? &last_ : nullptr;
      receptions.push_back(
          {chunks[ring.position(2 * size - step - 1)], combine, previous_is_lower});
    }
    const View first = chunks[ring.me];
    std::size_t send_bytes = first.bytes;
    for (std::size_t i = 0; i + 1 < receptions.size(); ++i) send_bytes += receptions[i].to.bytes;
    return {neighbours[0], neighbours[1], first, std::move(receptions), send_bytes};
  }

  const Reduction partial_;
  const Reduction last_;
  Relay relay_;  // points to both
};

}  // namespace

Status start_ring_allreduce(const Ring& ring, const View& view, const Reduction& reduction,
                            std::unique_ptr<Flow>& flow) {
  std::array<Channel*, 2> neighbours{};
  Status status = connect_neighbours(ring, neighbours);
  if (status.is_ok()) flow = std::make_unique<RingReduction>(ring, neighbours, view, reduction);
  return status;
}

Status ring_allreduce(const Ring& ring, const View& view, const Reduction& reduction) {
  std::unique_ptr<Flow> flow;
  Status status = start_ring_allreduce(ring, view, reduction, flow);
  return status.is_ok() ? drive_one(*flow, ring.wait) : status;
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
