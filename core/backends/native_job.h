// NativeJob: one response under way in the native backend, and the functions that execute each
// kind.
#pragma once

#include <functional>
#include <optional>

#include "backends/backend.h"
#include "backends/native_placement.h"
#include "backends/native_table.h"
#include "collectives/host_exchange.h"
#include "collectives/kernels.h"
#include "collectives/ring.h"
#include "collectives/segments.h"
#include "collectives/store_policy.h"
#include "transport/arena.h"

namespace hvd {

struct NativeJob {
  Work& work;
  const Placement& placement;
  std::optional<ArenaTurn>& turn;  // none where this rank is the only member on its host
  Links& links;
  WaitControl& wait;
  StorePolicy& stores;         // of reductions
  StorePolicy& stream_stores;  // of exchanges

  Reduction reduction() const { return {work.dtype, work.op, work.prescale, work.postscale}; }
  Algorithm algorithm(std::size_t bytes) const {
    return choose_algorithm(work.kind, placement.size(), placement.hosts.size(), bytes);
  }
};

Status native_allreduce(const NativeJob& job);
Status native_allgather(const NativeJob& job);
Status native_broadcast(const NativeJob& job);
Status native_alltoall(const NativeJob& job);
Status native_reducescatter(const NativeJob& job);

// --- Shared by them -----------------------------------------------------------------------------

// Inputs and outputs of all tensors of the work.
SegmentList segments_of(const Work& work);
// Product of all dimensions but the first, in bytes.
std::size_t row_bytes_of(const WorkTensor& tensor, DataType dtype);
// Sets the tensor's output shape and gets memory for it.
Status allocate_output(WorkTensor& tensor, Shape shape, DataType dtype);
// One member on one host: input to output, with both factors.
void reduce_alone(const View& view, const Reduction& reduction);

// Reduces inputs to outputs over all members of several hosts, with `parts` ranks of every host at
// work with the others. All segments have outputs.
Status hierarchical_allreduce(const NativeJob& job, const View& whole, const Reduction& reduction,
                              std::size_t parts);
// views[i] is in the outputs of local member i and comes to those of all members on this host.
Status share_on_host(const NativeJob& job, const std::vector<View>& views);
// Calls `work(ring)` when this rank is among the first `parts` of its host.
Status among_hosts(const NativeJob& job, std::size_t parts,
                   const std::function<Status(const Ring&)>& work);

}  // namespace hvd
