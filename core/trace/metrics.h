// Metrics: counters and histograms of one engine. Read by any thread at any time; each value is exact, two
// values may be of slightly different moments.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace hvd {

// A counter that one thread at a time adds to: the holder of a role. So no locked instruction is needed.
class Count {
 public:
  void add(std::uint64_t n = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// One that several threads add to.
class SharedCount {
 public:
  void add(std::uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct HistogramValues {
  std::vector<double> bounds;         // upper, inclusive
  std::vector<std::uint64_t> counts;  // one more than bounds: the last is above all of them
  double sum = 0;
};

// Counts of values by size: bucket i holds values up to first * 2^(step * i). One thread at a time adds.
class Histogram {
 public:
  static constexpr int kBuckets = 16;

  // `scale`: what a user sees is the value times this (nanoseconds to seconds).
  Histogram(std::uint64_t first, int step, double scale)
      : first_(first), step_(step), scale_(scale) {}

  void add(std::uint64_t value) {
    const std::uint64_t above = value <= 1 ? 0 : (value - 1) / first_;
    const int doublings = std::bit_width(above);
    const int bucket = (doublings + step_ - 1) / step_;
    counts_[static_cast<std::size_t>(bucket < kBuckets ? bucket : kBuckets)].add();
    sum_.add(value);
  }

  HistogramValues values() const {
    HistogramValues values;
    for (int i = 0; i < kBuckets; ++i) {
      values.bounds.push_back(static_cast<double>(first_ << (step_ * i)) * scale_);
    }
    for (const Count& count : counts_) values.counts.push_back(count.get());
    values.sum = static_cast<double>(sum_.get()) * scale_;
    return values;
  }

 private:
  std::uint64_t first_;
  int step_;
  double scale_;
  std::array<Count, kBuckets + 1> counts_;
  Count sum_;
};

inline std::uint64_t nanoseconds_between(std::chrono::steady_clock::time_point from,
                                         std::chrono::steady_clock::time_point to) {
  return to <= from ? 0
                    : static_cast<std::uint64_t>(
                          std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}

struct Metrics {
  // Under the negotiation role
  Count cache_hits, cache_misses;
  Count cycles;  // at the root: batches that were flushed
  Count stalls;  // at the root: reports
  Count failed;  // operations on which ranks disagreed
  Histogram negotiation_seconds{1000, 2, 1e-9};

  // Under the execution role
  std::array<Count, kCollectiveCount> operations, bytes;  // executed; of this rank's inputs
  Count responses;
  Count global_bytes;  // of the world's process set: what autotune looks at
  Count data_wait_nanoseconds;
  Histogram execution_seconds{1000, 2, 1e-9};
  Histogram tensors_per_response{1, 1, 1};
  Histogram response_bytes{64, 2, 1};

  // By any caller
  SharedCount wait_nanoseconds;
};

}  // namespace hvd
