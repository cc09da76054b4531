// JobState: whether the job runs, was shut down or was aborted, and why. What waits ask (WaitControl).
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>

#include "base/descriptor.h"
#include "base/status.h"
#include "base/types.h"
#include "transport/wait_control.h"

namespace hvd {

class JobState final : public WaitControl {
 public:
  // `may_spin`: this host has a core for each of its ranks.
  explicit JobState(bool may_spin);

  // The first call wins: keeps culprit and text, makes `abort_descriptor` readable; later ones do
  // nothing and return false.
  bool abort(Rank culprit, std::string text);
  void shut_down(std::string text);
  // Gives an abort that is on its way from another rank a second to arrive.
  void wait_for_abort();

  // Ok while running; otherwise why operations fail.
  Status status() const;
  bool is_running() const { return phase_.load(std::memory_order_acquire) == Phase::kRunning; }
  bool is_shut_down() const { return phase_.load(std::memory_order_acquire) == Phase::kShutDown; }
  Rank culprit() const;

  // WaitControl
  bool aborted() const override {
    return phase_.load(std::memory_order_acquire) == Phase::kAborted;
  }
  std::chrono::nanoseconds spin_time() const override;
  bool has_core_for_each_rank() const override { return may_spin_; }
  void about_to_sleep() override;
  int abort_descriptor() const override { return abort_event_.get(); }

  bool may_spin() const { return may_spin_; }
  // Callers blocked in `wait`: their cores are free.
  void caller_blocks() { blocked_callers_.fetch_add(1, std::memory_order_relaxed); }
  void caller_returns() { blocked_callers_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  enum class Phase : int { kRunning, kShutDown, kAborted };

  const bool may_spin_;
  std::atomic<Phase> phase_{Phase::kRunning};
  std::atomic<int> blocked_callers_{0};
  mutable std::mutex mutex_;
  Rank culprit_ = -1;
  std::string text_;
  Descriptor abort_event_;
};

// Set by a thread that counts as poller while it executes; `about_to_sleep` calls it once.
class SleepNotice {
 public:
  virtual ~SleepNotice() = default;
  virtual void going_to_sleep() = 0;
  static thread_local SleepNotice* current;
};

}  // namespace hvd
