// Copies between a view of tensors and contiguous memory.
#pragma once

#include <cstring>

#include "collectives/kernels.h"
#include "collectives/segments.h"

namespace hvd {

inline void gather(std::byte* to, const View& from, Store store) {
  from.for_each([&](const Segment& part) {
    if (part.in == nullptr) {
      std::memset(to, 0, part.bytes);
    } else {
      copy(to, part.in, part.bytes, store);
    }
    to += part.bytes;
  });
}

// Outputs of works this large do not stay in the cache anyway: writing around it saves reading them
// first.
inline constexpr std::size_t kStreamOutputBytes = std::size_t{8} << 20;

inline Store output_store_for(std::size_t work_bytes) {
  return work_bytes >= kStreamOutputBytes ? Store::kStreaming : Store::kOrdinary;
}

// What is reduced in place was read a moment ago: its lines are in the cache, and streaming would
// first have to throw them out.
inline Store output_store_of(const Segment& part, Store wanted) {
  return part.out == part.in ? Store::kOrdinary : wanted;
}

inline void scatter(const View& to, const std::byte* from, Store store) {
  to.for_each([&](const Segment& part) {
    if (part.out != nullptr) copy(part.out, from, part.bytes, output_store_of(part, store));
    from += part.bytes;
  });
}

// What is mine already: input to output, where they differ.
inline void copy_through(const View& view, Store store) {
  view.for_each([&](const Segment& part) {
    if (part.out == nullptr || part.out == part.in) return;
    if (part.in == nullptr) {
      std::memset(part.out, 0, part.bytes);
    } else {
      copy(part.out, part.in, part.bytes, store);
    }
  });
}

}  // namespace hvd
