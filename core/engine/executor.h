// Executor: runs the responses of the log on this rank, in order. Whoever holds the execution role
// (the executor's thread, or a caller blocked in `wait`) runs the next one.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/backend.h"
#include "engine/instruments.h"
#include "engine/job_state.h"
#include "engine/operation_table.h"
#include "transport/arena.h"

namespace hvd {

// A response with this rank's part in it. An operation is null where this rank has joined.
struct QueuedWork {
  Work work;
  std::shared_ptr<const std::vector<Rank>> members;
  std::vector<std::shared_ptr<Operation>> operations;
  std::size_t bytes = 0;  // of this rank's inputs
  bool awaited = false;   // somebody waits for it who will not come and say so
};

class Executor {
 public:
  // `backends` in order of preference. `patient`: this host has no core to spare, so what nobody waits
  // for yet may wait.
  Executor(std::vector<std::unique_ptr<Backend>> backends, OperationTable& table, JobState& state,
           const Arena& arena, bool patient, Instruments& instruments);

  // Appends; wakes somebody to run it if `wake` (a caller who helps takes it without).
  void queue(QueuedWork work, bool wake, std::chrono::steady_clock::time_point now);
  // Somebody asks for what is queued, if anything: it is not to wait any longer.
  void hurry();
  // A caller stops helping: what is queued, if anything, is for others.
  void hand_over();

  // Between these a caller sleeps on its handle. It is called when there is something to run, rather
  // than the executor's thread: its core is free, and it must wake up anyway when all is done.
  void enlist(Handle& sleeper);
  void dismiss(Handle& sleeper);
  bool empty() const { return waiting_.load(std::memory_order_acquire) == 0; }
  // Bytes of the next response, 0 when there is none.
  std::size_t next_bytes() const;

  // Runs the next response if there is one and nobody else is running one; says whether it did.
  bool try_run_one();

  // Body of the executor's thread: runs what is queued until `close`, then what is left.
  void run();
  void close();
  bool is_idle() const;

  std::size_t queued() const { return waiting_.load(std::memory_order_relaxed); }

 private:
  std::optional<QueuedWork> pop();
  void run_one(QueuedWork& item);
  void wait_for_work(std::unique_lock<std::mutex>& lock);
  void wake_somebody();
  Status execute(Work& work);
  void measure(const QueuedWork& item, const Status& status,
               std::chrono::steady_clock::time_point started,
               std::chrono::steady_clock::time_point finished);
  void trace(const QueuedWork& item, std::chrono::steady_clock::time_point started,
             std::chrono::steady_clock::time_point finished);

  std::vector<std::unique_ptr<Backend>> backends_;
  OperationTable& table_;
  JobState& state_;
  const Arena& arena_;
  const bool patient_;
  Instruments& instruments_;

  std::mutex role_;  // the execution role
  mutable std::mutex queue_mutex_;
  std::condition_variable queued_;
  std::deque<QueuedWork> queue_;
  std::vector<Handle*> sleepers_;
  std::atomic<std::size_t> waiting_{0};
  std::atomic<bool> running_{false};
  bool closed_ = false;
  bool asked_for_ = false;  // what is queued
  std::chrono::steady_clock::time_point waiting_since_;
};

}  // namespace hvd
