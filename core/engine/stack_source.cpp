#include "engine/stack_source.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <utility>

namespace hvd {

bool StackSource::next_request() {
  std::unique_lock lock(mutex_);
  served_ = true;
  changed_.wait(lock, [&] { return wanted_ || ended_; });
  wanted_ = false;
  return !ended_;
}

void StackSource::provide(std::string text) {
  {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }
  notify_();
}

void StackSource::set_handler(int signal, Descriptor file) {
  const std::lock_guard lock(mutex_);
  signal_ = signal;
  file_ = std::move(file);
}

void StackSource::request(TimePoint now) {
  const std::lock_guard lock(mutex_);
  if (asked_) return;
  asked_ = now;
  asking_.store(true, std::memory_order_relaxed);
  text_.reset();
  wanted_ = served_;
  changed_.notify_all();
}

std::optional<std::string> StackSource::take(TimePoint now) {
  if (!asking_.load(std::memory_order_relaxed)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (!asked_) return std::nullopt;
  const bool hopeless = !served_ || now >= *asked_ + kPatience;
  if (!text_ && !hopeless) return std::nullopt;
  asked_.reset();
  asking_.store(false, std::memory_order_relaxed);
  wanted_ = false;
  if (text_) return std::exchange(text_, std::nullopt);
  return signal_ == 0 ? std::string() : raise_and_read();
}

std::optional<StackSource::TimePoint> StackSource::deadline() const {
  if (!asking_.load(std::memory_order_relaxed)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (!asked_) return std::nullopt;
  return served_ ? *asked_ + kPatience : *asked_;
}

void StackSource::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

std::string StackSource::raise_and_read() {
  if (::ftruncate(file_.get(), 0) != 0 || ::lseek(file_.get(), 0, SEEK_SET) != 0) return "";
  sigset_t only, before;
  ::sigemptyset(&only);
  ::sigaddset(&only, signal_);
  ::pthread_sigmask(SIG_UNBLOCK, &only, &before);
  ::pthread_kill(::pthread_self(), signal_);  // handled before it returns
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::string text;
  char bytes[4096];
  for (off_t offset = 0;;) {
    const ssize_t got = ::pread(file_.get(), bytes, sizeof bytes, offset);
    if (got <= 0) break;
    text.append(bytes, static_cast<std::size_t>(got));
    offset += got;
  }
  return text;
}

}  // namespace hvd
