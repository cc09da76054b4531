#include "engine/step_counter.h"

namespace hvd {

bool StepCounter::executed(const ResponseItem& item) {
  bool begins = steps() == 0;
  if (item.id && *item.id >= step_of_id_.size()) {
    step_of_id_.resize(*item.id + std::size_t{64}, 0);
  }
  if (item.request) {  // the first time, without a cache, or with another shape than before
    begins = begins || names_.contains(item.request->name);
  } else {
    begins = begins || step_of_id_[*item.id] == steps();
  }
  if (begins) begin();
  if (item.id) step_of_id_[*item.id] = steps();
  if (item.request) names_.insert(item.request->name);
  return begins;
}

void StepCounter::begin() {
  if (!names_.empty()) names_.clear();
  steps_.fetch_add(1, std::memory_order_acq_rel);
  if (waiting_.load(std::memory_order_seq_cst) == 0) return;
  const std::lock_guard lock(mutex_);
  begun_.notify_all();
}

bool StepCounter::wait(std::uint64_t count, std::chrono::nanoseconds limit) {
  waiting_.fetch_add(1, std::memory_order_seq_cst);
  std::unique_lock lock(mutex_);
  const bool done = begun_.wait_for(lock, limit, [&] { return ended_ || steps() >= count; });
  waiting_.fetch_sub(1, std::memory_order_seq_cst);
  return done && !ended_;
}

void StepCounter::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  begun_.notify_all();
}

}  // namespace hvd
