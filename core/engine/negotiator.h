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
#include "engine/inbox.h"
#include "engine/job_state.h"
#include "engine/operation_table.h"
#include "engine/replica.h"
#include "engine/tree.h"

namespace hvd {

class Negotiator {
 public:
  Negotiator(const Config& config, const Topology& topology, RankSet subtree, Tree& tree,
             Inbox& inbox, OperationTable& table, Executor& executor, JobState& state);

  // Everything that can be done now: take in, decide, apply, pass on. `helping`: the caller will run
  // queued responses itself, so the executor's thread is not woken.
  void progress(TimePoint now, bool helping);

  std::optional<TimePoint> next_deadline() const;

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
  void finish(ProcessSetId set, const std::string& name, const Status& status,
              std::int64_t value = 0);
  void end(Operation& operation, const Status& status);
  void fail_waiting(const Status& status);
  void report_warnings(TimePoint now);

  const Config& config_;
  const Topology& topology_;
  Tree& tree_;
  Inbox& inbox_;
  OperationTable& table_;
  Executor& executor_;
  JobState& state_;

  Replica replica_;
  std::optional<Coordinator> coordinator_;  // at the root
  std::optional<Aggregator> aggregator_;    // elsewhere
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
