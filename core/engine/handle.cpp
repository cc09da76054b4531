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
  done_.store(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    ::syscall(SYS_futex, &done_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
  if (on_done) on_done(*this);
}

bool Handle::sleep(std::chrono::nanoseconds limit) const {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (!is_done()) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
    const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (limit - seconds).count()};
    ::syscall(SYS_futex, &done_, FUTEX_WAIT_PRIVATE, 0, &timeout, nullptr, 0);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return is_done();
}

}  // namespace hvd
