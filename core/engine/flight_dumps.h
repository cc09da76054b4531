// FlightDumps: when this rank writes down its last operations, and what it tells the root about itself. Used
// under the negotiation role.
//
// Reasons: the job is aborted; the root reports a stall and asks (InquiryMessage); somebody asks by a signal or a
// call. Where there is time, Python stacks are taken first.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "engine/instruments.h"
#include "engine/operation_table.h"
#include "engine/stack_source.h"

namespace hvd {

// Callers that wait in `Engine::wait` for long. Safe from any thread.
class BlockedCallers {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Caller {
    ProcessSetId process_set = kGlobalProcessSet;
    std::string name;
    TimePoint since;
  };

  // A caller is blocked in `handle`, until `leave`. Harmless when it is known already.
  void enter(const Handle& handle, TimePoint since);
  void leave(const Handle& handle);

  std::vector<Caller> all() const;

 private:
  mutable std::mutex mutex_;
  std::map<const Handle*, Caller> callers_;
};

// Whether the signal of `install_dump_signal` came and has not been looked after.
bool dump_signal_arrived();

class FlightDumps {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  FlightDumps(const Config& config, const Topology& topology, Instruments& instruments,
              OperationTable& table, StackSource& stacks,
              std::function<std::map<ProcessSetId, std::vector<Rank>>()> process_sets)
      : config_(config),
        topology_(topology),
        instruments_(instruments),
        table_(table),
        stacks_(stacks),
        process_sets_(std::move(process_sets)) {}

  // At once, with the stacks that were taken last: there may be no later.
  void dump_now(const std::string& reason, const std::string& text);
  // With stacks, when they are there.
  void dump(const std::string& reason, const std::string& text, TimePoint now);
  // The same, and an answer to the inquiry.
  void answer(const InquiryMessage& inquiry, TimePoint now);
  // From a signal handler or any thread; the engine's thread has to be woken after it.
  void demand(const std::string& reason);

  // Something is to be written. Asked in every round of negotiation.
  bool has_work() const {
    return !wishes_.empty() || demanded_.load(std::memory_order_relaxed) || dump_signal_arrived();
  }
  // Writes what is due; returns the answers that must go to the root.
  std::vector<AnswerMessage> progress(TimePoint now);
  std::optional<TimePoint> deadline() const { return stacks_.deadline(); }
  // Writes what is not written yet, with the stacks that can be had at once.
  void finish(TimePoint now);

  BlockedCallers& blocked() { return blocked_; }
  std::uint64_t written() const { return written_.load(std::memory_order_acquire); }

 private:
  struct Wish {
    std::string reason, text;
    std::optional<std::uint32_t> inquiry;
  };
  void write(const std::string& reason, const std::string& text, const std::string& stacks);
  AnswerMessage describe_self(std::uint32_t inquiry, const std::string& stacks,
                              TimePoint now) const;

  const Config& config_;
  const Topology& topology_;
  Instruments& instruments_;
  OperationTable& table_;
  StackSource& stacks_;
  std::function<std::map<ProcessSetId, std::vector<Rank>>()> process_sets_;
  std::string last_stacks_;
  BlockedCallers blocked_;
  std::vector<Wish> wishes_;
  std::mutex demand_mutex_;
  std::vector<std::string> demands_;
  std::atomic<bool> demanded_{false};
  std::atomic<std::uint64_t> written_{0};
  bool told_ = false;  // the user knows where dumps are
};

// From now on `signal` makes the engine whose descriptor this is write a dump; false: the program uses that
// signal itself. -1: there is no engine any more, and the signal does nothing.
bool install_dump_signal(int signal, int wake_descriptor);

}  // namespace hvd
