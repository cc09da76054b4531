#include "tensorflow/xla_waiters.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/signals.h"

namespace hvd::tensorflow {

namespace {

constexpr std::chrono::seconds kKeepIdle{60};

class Waiters {
 public:
  void put(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    if (tasks_.size() >= idle_) start();
    tasks_.push_back(std::move(task));
    arrived_.notify_one();
  }

 private:
  void start() {
    const AllSignalsBlocked inherited;
    std::thread([this] { run(); }).detach();
  }

  void run() {
    ::pthread_setname_np(::pthread_self(), "hvd-xla-wait");
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      const bool came = arrived_.wait_for(lock, kKeepIdle, [&] { return !tasks_.empty(); });
      --idle_;
      if (!came) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> tasks_;
  std::size_t idle_ = 0;
};

}  // namespace

void run_waiting(std::function<void()> task) {
  // Never destroyed: its threads may outlive the program's end.
  static Waiters& waiters = *new Waiters;
  waiters.put(std::move(task));
}

}  // namespace hvd::tensorflow
