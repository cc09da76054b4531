// Backend: who executes a response on given memory. Every kind answers "can you execute this here, and
// if not why?" and executes it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace hvd {

// One tensor of a response on this rank. Lengths are in elements of the work's dtype.
struct WorkTensor {
  const void* input = nullptr;       // contiguous; nullptr: this rank joined and contributes zeros
  void* output = nullptr;            // allreduce, broadcast: same size as input, may equal it.
                                     // allgather, alltoall, reducescatter: nullptr, see `allocate`
  Shape shape;                       // of the input on this rank (broadcast: of input and output)
  std::vector<std::int64_t> splits;  // alltoall: rows for each set rank
  std::vector<std::int64_t> received_splits;  // alltoall: filled in by the backend
  Shape output_shape;                         // filled in by the backend
  // Memory for an output whose size is known only during execution; called at most once, after
  // `output_shape` is known. nullptr result: out of memory. Unset for joined ranks.
  std::function<void*(const Shape& output_shape, std::size_t bytes)> allocate;
};

// Everything a backend needs to execute one response.
struct Work {
  std::uint64_t sequence = 0;  // number of this response in the log: equal on all ranks, increasing
  Collective kind = Collective::kAllreduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  Rank root = -1;            // broadcast: global rank
  std::int32_t device = -1;  // -1: host memory
  ProcessSetId process_set = kGlobalProcessSet;
  const std::vector<Rank>* members = nullptr;  // of the process set, ascending global ranks
  std::vector<WorkTensor> tensors;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // nullopt: can execute `work`; otherwise the reason why not, as a sentence.
  virtual std::optional<std::string> why_not(const Work& work) const = 0;
  // Executes `work`; returns when this rank's outputs are written and its inputs no longer read.
  virtual Status execute(Work& work) = 0;
};

}  // namespace hvd
