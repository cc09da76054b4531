// Reduction and copy kernels: elementwise work on contiguous memory of one type. The bits of a
// result depend neither on the instruction set in use nor on how a tensor is cut into calls.
#pragma once

#include <cstddef>
#include <span>

#include "base/types.h"

namespace hvd {

// How elements are combined. Each source is multiplied by `prescale` as it is read, the result by
// `postscale` as it is written: floats in their own type, 16-bit floats in float32, integers in
// double and truncated toward zero. A factor of 1 leaves the bits alone.
struct Reduction {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;

  Reduction without_postscale() const { return {dtype, op, prescale, 1.0}; }
  Reduction without_prescale() const { return {dtype, op, 1.0, postscale}; }
  Reduction unscaled() const { return {dtype, op, 1.0, 1.0}; }
};

// Ordinary stores leave the written lines in this core's cache; streaming (non-temporal) stores
// send them to memory. After streaming stores, `finish_streaming` must precede the publication.
enum class Store : bool { kOrdinary, kStreaming };

struct Sink {
  std::byte* address = nullptr;  // nullptr: not written
  Store store = Store::kOrdinary;
};

// Combines `count` elements of all sources, in their order, and writes the result to both sinks. A
// null source counts as zeros. A sink may be one of the sources; other overlaps are not allowed.
void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::size_t count, Sink first, Sink second = {});

// The two may be the same place; otherwise they must not overlap.
void copy(std::byte* to, const std::byte* from, std::size_t bytes, Store store);
void finish_streaming();

// Instruction sets that this machine can run; the tests compare them with each other.
enum class InstructionSet { kBaseline, kAvx2, kAvx512 };
InstructionSet best_instruction_set();
void use_instruction_set(InstructionSet set);  // for tests; not while others reduce

}  // namespace hvd
