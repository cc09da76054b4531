#include "engine/executor.h"

#include <exception>

namespace hvd {

Executor::Executor(std::vector<std::unique_ptr<Backend>> backends, OperationTable& table,
                   JobState& state)
    : backends_(std::move(backends)), table_(table), state_(state) {}

void Executor::queue(QueuedWork work, bool wake) {
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.push_back(std::move(work));
    waiting_.store(queue_.size(), std::memory_order_release);
  }
  if (wake) queued_.notify_one();
}

void Executor::wake_if_needed() {
  if (!empty()) queued_.notify_one();
}

std::size_t Executor::next_bytes() const {
  const std::lock_guard lock(queue_mutex_);
  return queue_.empty() ? 0 : queue_.front().bytes;
}

std::optional<QueuedWork> Executor::pop() {
  const std::lock_guard lock(queue_mutex_);
  if (queue_.empty()) return std::nullopt;
  QueuedWork item = std::move(queue_.front());
  queue_.pop_front();
  waiting_.store(queue_.size(), std::memory_order_release);
  running_.store(true, std::memory_order_relaxed);
  return item;
}

bool Executor::try_run_one() {
  if (empty()) return false;
  const std::unique_lock role(role_, std::try_to_lock);
  if (!role) return false;
  std::optional<QueuedWork> item = pop();
  if (!item) return false;
  run_one(*item);
  return true;
}

void Executor::run() {
  for (;;) {
    {
      std::unique_lock lock(queue_mutex_);
      queued_.wait(lock, [&] { return closed_ || !queue_.empty(); });
      if (queue_.empty()) {
        lock.unlock();
        // A caller who helps may have taken the last one and still be at it.
        const std::lock_guard role(role_);
        if (empty()) return;
      }
    }
    const std::lock_guard role(role_);
    if (std::optional<QueuedWork> item = pop()) run_one(*item);
  }
}

void Executor::close() {
  const std::lock_guard lock(queue_mutex_);
  closed_ = true;
  queued_.notify_all();
}

bool Executor::is_idle() const {
  const std::lock_guard lock(queue_mutex_);
  return queue_.empty() && !running_.load(std::memory_order_relaxed);
}

namespace {

// No exception leaves a thread: what the standard library throws (no memory) is an error like others.
Status execute_on(Backend& backend, Work& work) {
  try {
    return backend.execute(work);
  } catch (const std::exception& error) {
    return Status::aborted(std::string("The execution of a response failed: ") + error.what());
  }
}

}  // namespace

Status Executor::execute(Work& work) {
  if (state_.aborted()) return state_.status();
  std::string reasons;
  for (const auto& backend : backends_) {
    const std::optional<std::string> reason = backend->why_not(work);
    if (!reason) {
      Status status = execute_on(*backend, work);
      // One rank that stops in the middle leaves the others waiting: that is the end of the job.
      if (!status.is_ok()) state_.abort(-1, status.text());
      return status.is_ok() ? status : state_.status();
    }
    reasons += " " + std::string(backend->name()) + ": " + *reason;
  }
  return Status::mismatch("No backend can execute this operation." + reasons);
}

void Executor::run_one(QueuedWork& item) {
  item.work.members = item.members.get();
  const Status status = execute(item.work);
  executed_.fetch_add(1, std::memory_order_relaxed);
  executed_bytes_.fetch_add(item.bytes, std::memory_order_relaxed);
  for (std::size_t i = 0; i < item.operations.size(); ++i) {
    Operation* operation = item.operations[i].get();
    if (operation == nullptr) continue;
    Result& result = operation->handle->results[operation->index];
    result.shape = std::move(item.work.tensors[i].output_shape);
    result.received_splits = std::move(item.work.tensors[i].received_splits);
    // The name is free again before the caller can know that the operation is done.
    table_.remove(*operation);
    operation->finish(status);
  }
  const std::lock_guard lock(queue_mutex_);
  running_.store(false, std::memory_order_relaxed);
}

}  // namespace hvd
