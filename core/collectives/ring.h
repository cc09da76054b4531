// Rings between hosts: one rank of every host takes part.
#pragma once

#include <memory>
#include <span>

#include "base/status.h"
#include "collectives/flow.h"
#include "collectives/kernels.h"
#include "collectives/segments.h"
#include "transport/links.h"
#include "transport/wait_control.h"

namespace hvd {

// A rank's place in a ring or chain of ranks on different hosts.
struct Ring {
  std::span<const Rank> ranks;  // one per host
  std::size_t me = 0;           // position of this rank
  Links& links;
  WaitControl& wait;

  std::size_t size() const { return ranks.size(); }
  std::size_t position(std::size_t steps_ahead) const { return (me + steps_ahead) % size(); }
};

// Reduces the outputs of `view` over the ring, in place. Every rank sends 2 (N - 1) / N of it; one
// synchronisation per step is avoided by passing bytes on as they arrive. All ranks get equal bits.
// With two hosts the operands are combined in host order; with more, in an order that depends on
// the place in the view. 16-bit floats are rounded once at every hop.
Status ring_allreduce(const Ring& ring, const View& view, const Reduction& reduction);

// The same as a flow, which is for the caller to drive.
Status start_ring_allreduce(const Ring& ring, const View& view, const Reduction& reduction,
                            std::unique_ptr<Flow>& flow);

// blocks[i] is complete in the outputs of rank i and comes to everybody's.
Status ring_allgather(const Ring& ring, std::span<const View> blocks);

// The outputs of `view` on the rank at position `root` come to everybody's, along the ring.
Status chain_broadcast(const Ring& ring, std::size_t root, const View& view);

}  // namespace hvd
