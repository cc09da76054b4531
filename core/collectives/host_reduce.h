// Reduction among the ranks of one host, through the arena.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/kernels.h"
#include "collectives/segments.h"
#include "transport/arena.h"

namespace hvd {

class StorePolicy;

// How the work is cut and written; decides speed only, never bits.
struct HostTuning {
  std::size_t piece_bytes = 0;  // of all shares together; at most a slot
  StorePolicy* stores = nullptr;
};

// Every member puts all of it into its slot and reduces everything itself: one synchronisation.
// `whole` must fit into a slot.
Status host_allreduce_small(ArenaTurn& turn, const View& whole, const Reduction& reduction);

// shares[i] is reduced by member i, into its outputs; equal cuts on all members. With
// `redistribute` every member gets all shares (allreduce), without it only its own
// (reduce-scatter).
Status host_reduce_shares(ArenaTurn& turn, std::span<const View> shares, const Reduction& reduction,
                          bool redistribute, const HostTuning& tuning);

}  // namespace hvd
