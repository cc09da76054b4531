// Segments: the tensors of a fused response seen as one long vector of bytes, so that nothing is
// copied into a fusion buffer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace hvd {

struct Segment {
  const std::byte* in = nullptr;  // nullptr: zeros (this rank joined)
  std::byte* out = nullptr;       // nullptr: not wanted here
  std::size_t bytes = 0;

  Segment part(std::size_t begin, std::size_t length) const {
    return {in == nullptr ? nullptr : in + begin, out == nullptr ? nullptr : out + begin, length};
  }
};

class SegmentList {
 public:
  void add(Segment segment) {
    if (segment.bytes == 0) return;
    ends_.push_back(bytes() + segment.bytes);
    segments_.push_back(segment);
  }
  std::size_t bytes() const { return ends_.empty() ? 0 : ends_.back(); }

  // Calls `visit(Segment part)` for each contiguous part of [begin, begin + length), in order.
  template <class Visit>
  void for_each(std::size_t begin, std::size_t length, Visit visit) const {
    if (length == 0) return;
    std::size_t i = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
    for (; length > 0; ++i) {
      const std::size_t skip = begin - (ends_[i] - segments_[i].bytes);
      const std::size_t now = std::min(length, segments_[i].bytes - skip);
      visit(segments_[i].part(skip, now));
      begin += now;
      length -= now;
    }
  }

 private:
  std::vector<Segment> segments_;
  std::vector<std::size_t> ends_;  // running totals, parallel to segments_
};

// A range of a SegmentList, which must outlive it.
struct View {
  const SegmentList* list = nullptr;
  std::size_t begin = 0;
  std::size_t bytes = 0;

  View() = default;
  View(const SegmentList& whole)
      : list(&whole), bytes(whole.bytes()) {}  // NOLINT: a list is a view
  View(const SegmentList& whole, std::size_t from, std::size_t length)
      : list(&whole), begin(from), bytes(length) {}

  // The part at `from`, cut to what exists.
  View part(std::size_t from, std::size_t length) const {
    View result = *this;
    const std::size_t start = std::min(from, bytes);
    result.begin += start;
    result.bytes = std::min(length, bytes - start);
    return result;
  }

  template <class Visit>
  void for_each(Visit visit) const {
    if (bytes > 0) list->for_each(begin, bytes, visit);
  }
};

// `parts` consecutive ranges of almost equal size, cut at multiples of `unit` bytes; trailing ones
// may be empty.
inline std::vector<View> split_evenly(const View& whole, std::size_t parts, std::size_t unit) {
  const std::size_t units = (whole.bytes + unit - 1) / unit;
  const std::size_t step = (units + parts - 1) / parts * unit;
  std::vector<View> result;
  result.reserve(parts);
  for (std::size_t i = 0; i < parts; ++i) result.push_back(whole.part(i * step, step));
  return result;
}

// The outputs of a view as inputs: to send what was just computed.
inline SegmentList outputs_of(const View& view) {
  SegmentList result;
  view.for_each([&](const Segment& part) { result.add({part.out, part.out, part.bytes}); });
  return result;
}

}  // namespace hvd
