#include "engine/executor.h"

#include <algorithm>
#include <exception>

#include "base/float_mode.h"

namespace hvd {

namespace {

// Where ranks take all cores, a response that nobody waits for gains nothing by running beside the
// computation: both use the same core, and the exchange of pieces between ranks that are seldom on
// their cores at the same time costs more (figures in ARCHITECTURE.md). So it may wait until somebody asks
// for it here, or a peer waits for this rank's part at two looks in a row; not for ever, in case nobody does.
constexpr std::chrono::milliseconds kPatience{1000};
constexpr std::chrono::milliseconds kLookAtPeers{20};

}  // namespace

Executor::Executor(std::vector<std::unique_ptr<Backend>> backends, OperationTable& table,
                   JobState& state, const Arena& arena, bool patient, Instruments& instruments)
    : backends_(std::move(backends)),
      table_(table),
      state_(state),
      arena_(arena),
      patient_(patient),
      instruments_(instruments) {}

void Executor::queue(QueuedWork work, bool wake, std::chrono::steady_clock::time_point now) {
  const std::lock_guard lock(queue_mutex_);
  if (queue_.empty()) waiting_since_ = now;
  asked_for_ = asked_for_ || work.awaited;
  queue_.push_back(std::move(work));
  waiting_.store(queue_.size(), std::memory_order_release);
  if (wake) wake_somebody();
}

void Executor::hurry() {
  if (empty()) return;
  const std::lock_guard lock(queue_mutex_);
  asked_for_ = !queue_.empty();
  if (asked_for_) wake_somebody();
}

void Executor::hand_over() {
  if (empty()) return;
  const std::lock_guard lock(queue_mutex_);
  wake_somebody();
}

// Whoever runs a response looks for the next one afterwards, or hands over.
void Executor::wake_somebody() {
  if (running_.load(std::memory_order_relaxed)) return;
  if (sleepers_.empty()) {
    queued_.notify_one();
  } else {
    sleepers_.back()->call();
  }
}

void Executor::enlist(Handle& sleeper) {
  const std::lock_guard lock(queue_mutex_);
  sleepers_.push_back(&sleeper);
  if (!queue_.empty()) wake_somebody();  // queued since it last looked
}

void Executor::dismiss(Handle& sleeper) {
  const std::lock_guard lock(queue_mutex_);
  sleepers_.erase(std::ranges::find(sleepers_, &sleeper));
}

void Executor::wait_for_work(std::unique_lock<std::mutex>& lock) {
  queued_.wait(lock, [&] { return closed_ || !queue_.empty(); });
  if (!patient_) return;
  const auto ready = [&] { return closed_ || asked_for_ || queue_.empty() || !sleepers_.empty(); };
  bool peer_waited = false;
  while (!ready() && std::chrono::steady_clock::now() < waiting_since_ + kPatience) {
    queued_.wait_for(lock, kLookAtPeers, ready);
    const bool peer_waits = !queue_.empty() && arena_.peer_waits();
    if (peer_waits && peer_waited) asked_for_ = true;  // all of it
    peer_waited = peer_waits;
  }
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
  if (queue_.empty()) asked_for_ = false;
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
      wait_for_work(lock);
      if (queue_.empty() && !closed_) continue;
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
      if (status.is_ok()) return status;
      // One rank that stops in the middle leaves the others waiting: that is the end of the job. But a
      // peer may have closed its connection because it learnt of a death before this rank did: who
      // knows the first cause speaks first.
      state_.wait_for_abort();
      state_.abort(-1, status.text());
      return state_.status();
    }
    reasons += " " + std::string(backend->name()) + ": " + *reason;
  }
  return Status::mismatch("No backend can execute this operation." + reasons);
}

void Executor::run_one(QueuedWork& item) {
  const FloatModeScope mode(FE_DFL_ENV);  // a caller who helps may be a framework's thread
  item.work.members = item.members.get();
  const auto started = std::chrono::steady_clock::now();
  for (const auto& operation : item.operations) {
    if (operation != nullptr) instruments_.recorder.started(operation->serial, started);
  }
  state_.data_wait = {};
  const Status status = execute(item.work);
  const auto finished = std::chrono::steady_clock::now();
  measure(item, status, started, finished);
  if (instruments_.timeline.active()) trace(item, started, finished);
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

// Before the caller can know that its operation is done: what it then reads has it.
void Executor::measure(const QueuedWork& item, const Status& status,
                       std::chrono::steady_clock::time_point started,
                       std::chrono::steady_clock::time_point finished) {
  for (const auto& operation : item.operations) {
    if (operation != nullptr) {
      instruments_.recorder.finished(operation->serial, finished, status.text());
    }
  }
  Metrics& metrics = instruments_.metrics;
  const auto kind = static_cast<std::size_t>(item.work.kind);
  metrics.responses.add();
  metrics.operations[kind].add(item.operations.size());
  metrics.bytes[kind].add(item.bytes);
  if (item.work.process_set == kGlobalProcessSet) metrics.global_bytes.add(item.bytes);
  metrics.execution_seconds.add(nanoseconds_between(started, finished));
  metrics.tensors_per_response.add(item.operations.size());
  metrics.response_bytes.add(item.bytes);
  metrics.data_wait_nanoseconds.add(static_cast<std::uint64_t>(state_.data_wait.total.count()));
}

void Executor::trace(const QueuedWork& item, std::chrono::steady_clock::time_point started,
                     std::chrono::steady_clock::time_point finished) {
  for (const auto& operation : item.operations) {
    if (operation == nullptr) continue;
    const Request& request = operation->request;
    TraceExecuted what;
    what.started = started;
    what.finished = finished;
    what.wait_began = state_.data_wait.began;
    what.waited = state_.data_wait.total;
    what.dtype = request.dtype;
    what.shape = request.shape;
    what.bytes = element_count(request.shape) * static_cast<std::int64_t>(size_of(request.dtype));
    what.fused = static_cast<std::int32_t>(item.operations.size());
    what.response = item.work.sequence;
    instruments_.timeline.record(
        TensorTrace{finished, request.process_set, request.name, request.kind, std::move(what)});
  }
}

}  // namespace hvd
