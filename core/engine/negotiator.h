// Negotiator: this rank's part in agreeing what to execute. Takes what callers submit, speaks with
// parent and children, and applies the response log. Everything but the inbox is used by one thread at
// a time: the holder of the negotiation role.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/aggregator.h"
#include "engine/coordinator.h"
#include "engine/executor.h"
#include "engine/flight_dumps.h"
#include "engine/inbox.h"
#include "engine/instruments.h"
#include "engine/job_state.h"
#include "engine/operation_table.h"
#include "engine/replica.h"
#include "engine/step_counter.h"
#include "engine/timeline_control.h"
#include "engine/tree.h"

namespace hvd {

// What watches and explains the negotiation beside doing it.
struct Observers {
  Instruments& instruments;
  FlightDumps& dumps;
  StepCounter& steps;
  TimelineControl& timeline;
};

class Negotiator {
 public:
  Negotiator(const Config& config, const Topology& topology, RankSet subtree, Tree& tree,
             Inbox& inbox, OperationTable& table, Executor& executor, JobState& state, bool patient,
             Observers observers);

  // Everything that can be done now: take in, decide, apply, pass on. `helping`: the caller will run
  // queued responses itself, so the executor's thread is not woken.
  void progress(TimePoint now, bool helping);

  std::optional<TimePoint> next_deadline() const;

  // At the root: from now on. See Coordinator.
  void set_parameters(std::int64_t fusion_threshold_bytes, double cycle_time_ms,
                      bool cache_enabled);
  bool is_root() const { return coordinator_.has_value(); }
  // At the root: seconds that the others waited for each rank in the last window.
  std::map<Rank, double> straggler_seconds() const;

  // Begins this rank's timeline, if it writes one.
  Status begin_timeline(const std::string& path, bool mark_cycles);
  void set_clock(double offset_micros, double error_micros);

  // Tells the neighbours, once, that the job is aborted, and fails what is not being executed.
  void spread_abort();
  void say_goodbye();
  // Before the thread that `helping` calls came from stops looking.
  void ring_put_off_bells();

  // The ids and members of all process sets; thread-safe.
  std::map<ProcessSetId, std::vector<Rank>> process_sets() const;
  // nullptr when there is no such set; thread-safe.
  std::shared_ptr<const std::vector<Rank>> members_of(ProcessSetId set) const;
  std::uint64_t responses() const { return sequence_; }

 private:
  UpMessage take_submissions();
  void announce(Operation& operation, bool urgent, UpMessage& message);
  UpMessage announce_again();
  bool waits_for_join(const Operation& operation) const;
  void decide(TimePoint now);
  void receive(Rank from, Message&& message);
  void pass_up(UpMessage&& message, TimePoint now);
  void append(std::vector<LogEntry>&& entries);
  void apply(const LogEntry& entry);
  void apply(const ExecuteEntry& entry);
  void apply(const FailEntry& entry);
  void apply(const EvictEntry& entry);
  void apply(const AddProcessSetEntry& entry);
  void apply(const RemoveProcessSetEntry& entry);
  void apply(const JoinedEntry& entry);
  void apply(const ShutdownEntry& entry);
  void apply(const TimelineEntry& entry);
  void finish(ProcessSetId set, const std::string& name, const Status& status,
              std::int64_t value = 0);
  void end(Operation& operation, const Status& status);
  void fail_waiting(const Status& status);
  void report_warnings(TimePoint now);
  void answer_inquiries(TimePoint now);
  void decide_timeline();
  void trace_announcements(const UpMessage& message, TimePoint now);
  void trace(const Request& request, decltype(TensorTrace::what) what);
  void count_step(const ExecuteEntry& entry,
                  const std::vector<std::shared_ptr<const Request>>& requests);

  const Config& config_;
  const Topology& topology_;
  Tree& tree_;
  Inbox& inbox_;
  OperationTable& table_;
  Executor& executor_;
  JobState& state_;
  const bool patient_;
  Observers observers_;
  double clock_offset_micros_ = 0;  // this rank's clock less rank 0's
  double clock_error_micros_ = 0;

  Replica replica_;
  std::optional<Coordinator> coordinator_;          // at the root
  std::optional<Aggregator> aggregator_;            // elsewhere
  Inquiry inquiry_;                                 // at the root
  std::vector<TimelineCommand> timeline_commands_;  // at the root, to be decided
  mutable std::mutex stragglers_mutex_;
  std::map<Rank, double> straggler_seconds_;
  std::uint64_t straggler_windows_ = 0;  // that have been looked at
  mutable std::mutex sets_mutex_;
  std::map<ProcessSetId, std::shared_ptr<const std::vector<Rank>>> sets_;
  std::vector<std::shared_ptr<Operation>> again_;  // to be announced once more or later
  bool joined_ = false;  // this rank has announced a join that has not come to its end
  std::uint64_t sequence_ = 0;
  TimePoint now_;
  bool helping_ = false;
  bool abort_spread_ = false;
};

}  // namespace hvd
