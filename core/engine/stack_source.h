// StackSource: how the engine gets the Python stacks of its process without knowing Python.
//
// A thread of Python waits in `next_request`, takes the stacks of all threads and gives them to `provide`. It
// needs Python's global lock for that. If it does not get it in time (some native code holds it), the engine
// raises a signal in one of its own threads; the handler, which Python has installed (faulthandler), writes
// all stacks to a file without that lock, and nobody's system call is interrupted.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "base/descriptor.h"

namespace hvd {

class StackSource {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  static constexpr std::chrono::seconds kPatience{1};

  // `notify` is called when stacks have been provided.
  explicit StackSource(std::function<void()> notify) : notify_(std::move(notify)) {}

  // --- Python's side
  // Blocks until stacks are wanted; false: never again.
  bool next_request();
  void provide(std::string text);
  // `signal` writes the stacks to `file`, from its beginning.
  void set_handler(int signal, Descriptor file);

  // --- The engine's side, under the negotiation role
  void request(TimePoint now);
  // When they are there, or could not be got otherwise in time; empty where nobody provides any.
  std::optional<std::string> take(TimePoint now);
  std::optional<TimePoint> deadline() const;
  void end();

 private:
  std::string raise_and_read();

  std::function<void()> notify_;
  // Looked at in every round of negotiation, so without the lock. Changed under the negotiation role only.
  std::atomic<bool> asking_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool served_ = false;  // a thread of Python looks after requests
  bool wanted_ = false;
  bool ended_ = false;
  std::optional<std::string> text_;
  std::optional<TimePoint> asked_;  // a request is under way since
  int signal_ = 0;
  Descriptor file_;
};

}  // namespace hvd
