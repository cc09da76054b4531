// Fusion: which of the tensors that are ready go into one response. Pure.
//
// Tensors fuse when kind (allreduce, reducescatter, allgather), process set, dtype, device, op and
// factors are equal and the sum of their bytes is within the threshold. A tensor that does not fit
// is skipped and later ones are looked at, as long as fused and skipped bytes together stay within
// the threshold; what was skipped keeps its order. Members of a group that can fuse stay together
// whatever the threshold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "wire/messages.h"

namespace hvd {

struct FusionItem {
  const Request* request = nullptr;
  std::int64_t bytes = 0;
  std::int32_t group = -1;  // members of one group are neighbours and share a number; -1: no group
};

struct FusionOptions {
  std::int64_t threshold_bytes = 0;   // 0: nothing fuses, except a group within itself
  bool disable_group_fusion = false;  // a group fuses within itself only
};

// One list of indices into `items` for each response, in the order of execution.
std::vector<std::vector<std::size_t>> plan_fusion(std::span<const FusionItem> items,
                                                  const FusionOptions& options);

// Broadcast, alltoall and barrier never share a response.
bool is_fusible(Collective kind);

// Bytes that count against the threshold: of the input, for allgather of the output if all of the
// `set_size` ranks sent as much as this one. Saturates instead of overflowing.
std::int64_t fusion_bytes(const Request& request, std::int64_t set_size);

}  // namespace hvd
