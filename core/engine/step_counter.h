// StepCounter: where training steps begin. A program reduces the same tensors in each step, so a step begins
// when a tensor comes again that was executed in this one. Used under the negotiation role; waits from any
// thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "wire/messages.h"

namespace hvd {

class StepCounter {
 public:
  // A tensor of the world's process set was put into the log, with what its item has. Returns whether a step
  // begins with it. Generated names never come again and must not be given.
  bool executed(const ResponseItem& item);

  std::uint64_t steps() const { return steps_.load(std::memory_order_acquire); }
  // Until `count` steps have begun; false: out of time, or `end` was called.
  bool wait(std::uint64_t count, std::chrono::nanoseconds limit);
  void end();

 private:
  void begin();

  std::atomic<std::uint64_t> steps_{0};
  std::vector<std::uint64_t> step_of_id_;  // in which each id was last seen
  std::unordered_set<std::string> names_;  // of this step, of what came as a full request
  std::mutex mutex_;
  std::condition_variable begun_;
  std::atomic<int> waiting_{0};
  bool ended_ = false;
};

}  // namespace hvd
