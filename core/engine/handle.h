// Handle: what a caller holds while operations are in flight: when they are done, how they ended, and
// the memory that the core allocated for outputs of unknown size.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace hvd {

struct Operation;

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::byte[], FreeMemory>;

// How one tensor of an operation came out.
struct Result {
  Buffer buffer;          // empty when the caller gave the output memory
  std::size_t bytes = 0;  // of the buffer's content
  Shape shape;
  std::vector<std::int64_t> received_splits;
};

enum class Woken : std::uint8_t { kDone, kCalled, kNeither };

class Handle {
 public:
  explicit Handle(std::size_t operations)
      : results(operations), pending_(static_cast<std::int32_t>(operations)) {}

  bool is_done() const { return state_.load(std::memory_order_acquire) == kDone; }

  // One of the operations has ended. The first failure is the status of the handle.
  void finish_one(const Status& status);

  // Sleeps until done, called, a signal arrives or `limit` passes.
  Woken sleep(std::chrono::nanoseconds limit);
  // Wakes who sleeps here or is about to: there is work for its thread.
  void call();

  // Only after `is_done`.
  const Status& status() const { return status_; }
  std::vector<Result> results;
  std::vector<std::weak_ptr<Operation>> operations;  // what it stands for, while in flight
  std::atomic<bool> urgent{false};                   // somebody waits for it, and the root knows
  std::atomic<bool> blocks_caller{false};            // somebody sleeps for it, and may again
  std::int64_t value = 0;                            // join: last rank; add_process_set: id
  // For callers that do not wait: called once, when it is done, on whatever thread ends the last
  // operation; must be quick and must not block. Set before the submission.
  std::function<void(Handle&)> on_done;

 private:
  enum : std::uint32_t { kInFlight, kDone, kCalled };  // values of state_
  void wake_sleepers();

  std::atomic<std::uint32_t> state_{kInFlight};
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<std::int32_t> pending_;
  std::mutex status_mutex_;
  Status status_;
};

}  // namespace hvd
