#include "tensorflow/completions.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/signals.h"

namespace hvd::tensorflow {

namespace {

class Completions {
 public:
  void put(std::function<void()> task) {
    bool was_empty = false;
    {
      const std::lock_guard lock(mutex_);
      if (!started_) start();
      was_empty = tasks_.empty();
      tasks_.push_back(std::move(task));
    }
    if (was_empty) arrived_.notify_one();
  }

 private:
  void start() {
    started_ = true;
    const AllSignalsBlocked inherited;
    std::thread([this] { run(); }).detach();
  }

  void run() {
    ::pthread_setname_np(::pthread_self(), "hvd-tf-done");
    std::unique_lock lock(mutex_);
    for (;;) {
      arrived_.wait(lock, [&] { return !tasks_.empty(); });
      std::deque<std::function<void()>> ready;
      ready.swap(tasks_);
      lock.unlock();
      for (const auto& task : ready) task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> tasks_;
  bool started_ = false;
};

}  // namespace

void run_later(std::function<void()> task) {
  // Never destroyed: its thread lives as long as the process.
  static Completions& completions = *new Completions;
  completions.put(std::move(task));
}

}  // namespace hvd::tensorflow
