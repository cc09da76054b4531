// StorePolicy: whether ordinary or streaming stores into the arena are faster here and now. That
// depends on whether the ranks' cores share a cache, which the scheduler changes while the job
// runs, so it is measured on the work itself, and the other way is tried again now and then.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "collectives/kernels.h"

namespace hvd {

class StorePolicy {
 public:
  // Works smaller than this are not worth a thought.
  static constexpr std::size_t kFewBytes = std::size_t{8} << 10;
  // A larger work gives several samples.
  static constexpr std::size_t kSampleBytes = std::size_t{4} << 20;

  // How to write the next sample of a work of `work_bytes`.
  Store choose(std::size_t work_bytes);
  // What it cost.
  void record(std::size_t work_bytes, Store store, std::size_t bytes, double nanoseconds);
  // What is best at present, without a trial; for sizes never seen, what the last work found.
  Store best(std::size_t work_bytes) const;
  // Another rank decides for the work; follow it in works of one's own.
  void follow(std::size_t work_bytes, Store store);

 private:
  // Works of similar size are compared with each other only.
  struct Bucket {
    bool known = false;
    std::array<double, 2> cost{};   // ns per byte, by Store; 0: not known
    std::array<int, 2> slow_run{};  // samples in a row that were much dearer than expected
    Store best = Store::kOrdinary;
    int until_trial = 0;
    int interval = 0;  // samples between the last two trials; 0: the best is new
    int trials = 0;    // samples still to be written the other way
  };
  static std::size_t index_of(std::size_t work_bytes);
  void learn(Bucket& bucket, Store store);

  std::array<Bucket, 16> buckets_{};  // by powers of two
  Store latest_ = Store::kOrdinary;
};

}  // namespace hvd
