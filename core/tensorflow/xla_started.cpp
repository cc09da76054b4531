#include "tensorflow/xla_started.h"

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/types.h"
#include "tensorflow/xla_waiters.h"

namespace hvd::tensorflow {

namespace {

// The started calls of all programs that run, by run and number within it.
class Runs {
 public:
  Ticket add(std::shared_ptr<StartedCall> call, Ticket before) {
    const std::lock_guard lock(mutex_);
    const std::int64_t run = before != 0 ? before >> kNumberBits : ++last_run_;
    const std::int64_t number = (before & kNumberMask) + 1;
    calls_[run].emplace(number, std::move(call));
    return run << kNumberBits | number;
  }

  std::shared_ptr<StartedCall> take(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    const auto run = calls_.find(ticket >> kNumberBits);
    if (run == calls_.end()) return nullptr;
    auto call = run->second.extract(ticket & kNumberMask);
    if (run->second.empty()) calls_.erase(run);
    return call ? std::move(call.mapped()) : nullptr;
  }

  std::vector<std::shared_ptr<StartedCall>> abandon(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<StartedCall>> abandoned;
    auto run = calls_.extract(ticket >> kNumberBits);
    if (!run) return abandoned;
    for (auto& [number, call] : run.mapped()) {
      abandoned_names_.insert(call->name());
      abandoned.push_back(std::move(call));
    }
    return abandoned;
  }

  void ended(const StartedCall& abandoned) {
    const std::lock_guard lock(mutex_);
    abandoned_names_.erase(abandoned_names_.find(abandoned.name()));
    ended_.notify_all();
  }

  void wait_until_free(const std::string& name) {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return !abandoned_names_.contains(name); });
  }

 private:
  static constexpr int kNumberBits = 24;  // a program has fewer calls
  static constexpr std::int64_t kNumberMask = (std::int64_t{1} << kNumberBits) - 1;

  std::mutex mutex_;
  std::condition_variable ended_;
  std::multiset<std::string> abandoned_names_;  // of calls that have not ended
  std::int64_t last_run_ = 0;
  std::unordered_map<std::int64_t, std::map<std::int64_t, std::shared_ptr<StartedCall>>> calls_;
};

Runs& runs() {
  // Never destroyed: threads that use it may outlive the program's end.
  static Runs& runs = *new Runs;
  return runs;
}

std::size_t byte_count(const Shape& shape, DataType dtype) {
  return static_cast<std::size_t>(element_count(shape)) * size_of(dtype);
}

}  // namespace

OwnedBuffers::OwnedBuffers(const XlaCall& call, std::span<const void* const> xla_inputs) {
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    const XlaTensor& tensor = call.tensors[i];
    auto& input = memory.emplace_back(byte_count(tensor.shape, tensor.dtype));
    if (!input.empty()) std::memcpy(input.data(), xla_inputs[i], input.size());
    inputs.push_back(input.data());
    output_bytes.push_back(byte_count(output_shape(tensor), tensor.dtype));
    const bool in_place = keeps_size(call.kind);
    outputs.push_back(in_place ? input.data() : memory.emplace_back(output_bytes.back()).data());
  }
}

StartedCall::StartedCall(XlaCall call, std::span<const void* const> inputs)
    : name_(call.name),
      buffers_(call, inputs),
      execution_(std::move(call), buffers_.inputs, buffers_.outputs) {}

XlaOutcome StartedCall::finish(std::span<void* const> outputs) {
  XlaOutcome outcome = wait();
  for (std::size_t i = 0; i < buffers_.outputs.size() && outcome.code == HVD_OK; ++i) {
    if (buffers_.output_bytes[i] == 0) continue;
    std::memcpy(outputs[i], buffers_.outputs[i], buffers_.output_bytes[i]);
  }
  return outcome;
}

XlaOutcome start_call(XlaCall call, std::span<const void* const> inputs, Ticket before,
                      Ticket* ticket) {
  runs().wait_until_free(call.name);
  auto started = std::make_shared<StartedCall>(std::move(call), inputs);
  XlaOutcome outcome = started->submit();
  if (outcome.code == HVD_OK) {
    *ticket = runs().add(std::move(started), before);
  } else {
    abandon_run(before);
  }
  return outcome;
}

std::shared_ptr<StartedCall> take_started(Ticket ticket) { return runs().take(ticket); }

XlaOutcome was_abandoned() {
  return {HVD_ABORTED, "Another collective of this compiled function failed."};
}

XlaOutcome finish_call(StartedCall& call, Ticket ticket, std::span<void* const> outputs) {
  XlaOutcome outcome = call.finish(outputs);
  if (outcome.code != HVD_OK) abandon_run(ticket);
  return outcome;
}

void abandon_run(Ticket ticket) {
  if (ticket == 0) return;
  for (const auto& call : runs().abandon(ticket)) {
    const auto wait = [call] {
      call->wait();
      runs().ended(*call);
    };
    try {
      run_waiting(wait);
    } catch (const std::system_error&) {  // no thread to be had: the failure is told later
      wait();
    }
  }
}

}  // namespace hvd::tensorflow
