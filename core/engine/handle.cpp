#include "engine/handle.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace hvd {

void Handle::finish_one(const Status& status) {
  if (!status.is_ok()) {
    const std::lock_guard lock(status_mutex_);
    if (status_.is_ok()) status_ = status;
  }
  if (pending_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  state_.store(kDone, std::memory_order_seq_cst);
  wake_sleepers();
  if (on_done) on_done(*this);
}

void Handle::call() {
  std::uint32_t in_flight = kInFlight;
  if (state_.compare_exchange_strong(in_flight, kCalled, std::memory_order_seq_cst)) {
    wake_sleepers();
  }
}

void Handle::wake_sleepers() {
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

Woken Handle::sleep(std::chrono::nanoseconds limit) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (state_.load(std::memory_order_seq_cst) == kInFlight) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
    const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (limit - seconds).count()};
    ::syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, kInFlight, &timeout, nullptr, 0);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  std::uint32_t called = kCalled;
  if (state_.compare_exchange_strong(called, kInFlight, std::memory_order_acq_rel)) {
    return Woken::kCalled;
  }
  return is_done() ? Woken::kDone : Woken::kNeither;
}

}  // namespace hvd
