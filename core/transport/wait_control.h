// WaitControl: how a thread of the executor may wait. Implemented by the engine, which knows whether
// a caller is blocked (then its core is free and spinning costs nothing) and whether the job was aborted.
#pragma once

#include <chrono>

namespace hvd {

// How long an execution has waited in all for other ranks' data, and since when. Zero: they always were there.
struct DataWait {
  std::chrono::steady_clock::time_point began{};
  std::chrono::nanoseconds total{0};

  void add(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
    if (total == total.zero()) began = from;
    total += to - from;
  }
};

class WaitControl {
 public:
  virtual ~WaitControl() = default;

  // True once the job was aborted (a peer died): give up waiting and return Status::aborted.
  virtual bool aborted() const = 0;

  // How long a wait may spin before it sleeps in the kernel; zero when the core has other work.
  virtual std::chrono::nanoseconds spin_time() const = 0;

  // Whether this host has a core for each of its ranks, so none need share one.
  virtual bool has_core_for_each_rank() const = 0;

  // Called once by a wait that is going to sleep in the kernel, before it does.
  virtual void about_to_sleep() = 0;

  // Written by waits, read and reset by whoever holds the execution role.
  DataWait data_wait;

  // Becomes readable when `aborted` turns true; for poll(2).
  virtual int abort_descriptor() const = 0;
};

}  // namespace hvd
