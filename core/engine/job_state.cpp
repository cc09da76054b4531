#include "engine/job_state.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace hvd {

namespace {

// A peer that runs answers in microseconds; when it does not, it is not running: stop burning the core.
constexpr std::chrono::microseconds kSpinWhileCallerBlocks{200};
constexpr int kFirstCauseTimeMs = 1000;

}  // namespace

thread_local SleepNotice* SleepNotice::current = nullptr;

JobState::JobState(bool may_spin)
    : may_spin_(may_spin), abort_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!abort_event_) throw std::system_error(errno, std::generic_category(), "eventfd");
}

bool JobState::abort(Rank culprit, std::string text) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kAborted) return false;
  culprit_ = culprit;
  text_ = std::move(text);
  phase_.store(Phase::kAborted, std::memory_order_release);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(abort_event_.get(), &one, sizeof one);
  return true;
}

void JobState::wait_for_abort() {
  about_to_sleep();
  pollfd event{.fd = abort_event_.get(), .events = POLLIN, .revents = 0};
  ::poll(&event, 1, kFirstCauseTimeMs);
}

void JobState::shut_down(std::string text) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kRunning) return;
  text_ = std::move(text);
  phase_.store(Phase::kShutDown, std::memory_order_release);
}

Status JobState::status() const {
  const std::lock_guard lock(mutex_);
  return phase_ == Phase::kRunning ? Status::ok() : Status::aborted(text_);
}

Rank JobState::culprit() const {
  const std::lock_guard lock(mutex_);
  return culprit_;
}

std::chrono::nanoseconds JobState::spin_time() const {
  const bool core_is_free = may_spin_ && blocked_callers_.load(std::memory_order_relaxed) > 0;
  return core_is_free ? kSpinWhileCallerBlocks : std::chrono::nanoseconds(0);
}

void JobState::about_to_sleep() {
  if (SleepNotice* notice = std::exchange(SleepNotice::current, nullptr)) notice->going_to_sleep();
}

}  // namespace hvd
