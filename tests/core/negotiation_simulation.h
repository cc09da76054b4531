// A whole job without sockets or threads: ranks in a tree, queues between them, a random scheduler.
// Each rank does what the engine owes to the protocol (replica.h) and checks each entry as it
// comes.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/aggregator.h"
#include "engine/agreement.h"
#include "engine/coordinator.h"
#include "engine/replica.h"
#include "testing.h"
#include "wire/codec.h"

namespace hvd::samples {

enum class Ending : std::uint8_t { kExecuted, kFailed, kEither };

// What one rank submits. Members of a group follow one another and are submitted together.
struct Step {
  Request request;
  int set_slot = -1;  // >= 0: the process set is the one that this slot holds now
  Ending expected = Ending::kExecuted;
  bool with_next = false;  // submitted together with the next step
  int adds_slot = -1;      // add_process_set: the slot that will hold it
};

struct Operation {
  Request request;
  Ending expected;
  int adds_slot;
  std::optional<CacheId> announced_id;
  bool announced = false;
};

using OperationKey = std::pair<ProcessSetId, std::string>;

struct SimulatedRank {
  Rank rank = 0;
  Rank parent = -1;
  std::vector<Rank> children;
  std::unique_ptr<Replica> replica;
  std::unique_ptr<Coordinator> coordinator;  // at the root
  std::unique_ptr<Aggregator> aggregator;    // elsewhere

  std::deque<std::vector<Step>> rounds;  // the next begins when all of the last is done
  std::map<OperationKey, Operation> operations;
  std::vector<OperationKey> unannounced;
  UpMessage own;
  bool joined = false;
  bool ended = false;
  std::map<int, ProcessSetId> slots;
  std::vector<std::vector<std::byte>> log;
  std::string fault;
};

class Simulation {
 public:
  Simulation(const std::vector<Rank>& parents, const Config& config, std::chrono::nanoseconds hold,
             std::uint64_t seed);

  SimulatedRank& rank(std::size_t index) { return ranks_[index]; }
  std::size_t size() const { return ranks_.size(); }

  // Runs until nothing can happen any more. `steps_until_shutdown`: some rank then asks for the
  // end.
  void run(std::optional<int> steps_until_shutdown);
  void ask_for_shutdown(std::size_t index) { ranks_[index].own.shutdown = true; }

  // The first thing that was wrong, or empty.
  std::string fault() const;
  bool all_done() const;
  bool nothing_left() const;

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  bool one_step();
  bool submit(SimulatedRank& r);
  bool mark_something(SimulatedRank& r);
  void announce(SimulatedRank& r, const OperationKey& key);
  void announce_waiting(SimulatedRank& r);
  bool progress(SimulatedRank& r);
  bool deliver_up(SimulatedRank& child);
  bool deliver_down(SimulatedRank& child);
  void receive_entries(SimulatedRank& r, const std::vector<LogEntry>& entries);
  bool advance_clock();

  void apply(SimulatedRank& r, const ExecuteEntry& entry);
  void apply(SimulatedRank& r, const FailEntry& entry);
  void apply(SimulatedRank& r, const EvictEntry& entry);
  void apply(SimulatedRank& r, const AddProcessSetEntry& entry);
  void apply(SimulatedRank& r, const RemoveProcessSetEntry& entry);
  void apply(SimulatedRank& r, const JoinedEntry& entry);
  void apply(SimulatedRank& r, const ShutdownEntry& entry);
  void apply(SimulatedRank&, const TimelineEntry&) {}
  void finish(SimulatedRank& r, const OperationKey& key, Ending outcome, const std::string& why);
  void blame(SimulatedRank& r, const std::string& what) {
    if (r.fault.empty()) r.fault = "rank " + std::to_string(r.rank) + ": " + what;
  }

  std::mt19937_64 random_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  std::vector<SimulatedRank> ranks_;
  std::vector<std::deque<std::vector<std::byte>>> up_;    // from each rank to its parent
  std::vector<std::deque<std::vector<std::byte>>> down_;  // to each rank from its parent
};

inline Simulation::Simulation(const std::vector<Rank>& parents, const Config& config,
                              std::chrono::nanoseconds hold, std::uint64_t seed)
    : random_(seed), ranks_(parents.size()), up_(parents.size()), down_(parents.size()) {
  const auto size = static_cast<Rank>(parents.size());
  std::vector<RankSet> subtrees;
  for (Rank r = 0; r < size; ++r) subtrees.emplace_back(r);
  for (Rank r = size - 1; r > 0; --r) {  // parents come before their children
    const auto parent = static_cast<std::size_t>(parents[static_cast<std::size_t>(r)]);
    subtrees[parent].add(subtrees[static_cast<std::size_t>(r)]);
    ranks_[parent].children.push_back(r);
  }
  for (Rank r = 0; r < size; ++r) {
    const auto index = static_cast<std::size_t>(r);
    SimulatedRank& simulated = ranks_[index];
    simulated.rank = r;
    simulated.parent = parents[index];
    simulated.replica = std::make_unique<Replica>(size);
    if (r == 0) {
      simulated.coordinator = std::make_unique<Coordinator>(config, size);
    } else {
      simulated.aggregator = std::make_unique<Aggregator>(subtrees[index], hold);
    }
  }
}

// --- Scheduling ----------------------------------------------------------------------------------

inline void Simulation::run(std::optional<int> steps_until_shutdown) {
  for (int step = 0; step < 200000; ++step) {
    if (steps_until_shutdown && step == *steps_until_shutdown) ask_for_shutdown(below(size()));
    if (one_step() || advance_clock()) continue;
    return;
  }
  blame(ranks_[0], "the simulation does not come to an end");
}

// Some possible action, chosen at random; false when there is none.
inline bool Simulation::one_step() {
  const std::size_t first = below(size() * 5);
  for (std::size_t i = 0; i < size() * 5; ++i) {
    const std::size_t choice = (first + i) % (size() * 5);
    SimulatedRank& r = ranks_[choice % size()];
    switch (choice / size()) {
      case 0:
        if (submit(r)) return true;
        break;
      case 1:
        if (deliver_up(r)) return true;
        break;
      case 2:
        if (deliver_down(r)) return true;
        break;
      case 3:
        if (progress(r)) return true;
        break;
      default:
        if (below(4) == 0 && mark_something(r)) return true;
        if (below(8) == 0) now_ += std::chrono::microseconds(below(1000));
    }
  }
  return false;
}

inline bool Simulation::advance_clock() {
  std::optional<TimePoint> next;
  for (const SimulatedRank& r : ranks_) {
    const auto due = r.coordinator ? r.coordinator->next_deadline() : r.aggregator->next_deadline();
    if (due && (!next || *due < *next)) next = due;
  }
  // Stall reports are set to be due in the far future: only a deadlock would get there.
  if (!next || *next > now_ + std::chrono::hours(24)) return false;
  now_ = std::max(now_, *next);
  bool acted = false;
  for (SimulatedRank& r : ranks_) acted = progress(r) || acted;
  return acted;
}

inline bool Simulation::submit(SimulatedRank& r) {
  if (r.ended || r.rounds.empty()) return false;
  std::vector<Step>& round = r.rounds.front();
  if (round.empty()) {
    if (!r.operations.empty()) return false;
    r.rounds.pop_front();
    return true;
  }
  bool more = true;
  while (more) {
    Step step = std::move(round.front());
    round.erase(round.begin());
    more = step.with_next;
    if (step.set_slot >= 0) {
      step.request.process_set = r.slots[step.set_slot];
      if (step.request.kind == Collective::kRemoveProcessSet) {
        step.request.target_set = std::exchange(step.request.process_set, kGlobalProcessSet);
      }
    }
    const OperationKey key{step.request.process_set, step.request.name};
    if (r.operations.contains(key)) blame(r, "the test submits " + key.second + " twice");
    r.operations[key] = {std::move(step.request), step.expected, step.adds_slot, {}, false};
    r.unannounced.push_back(key);
  }
  announce_waiting(r);
  return true;
}

// After its join a rank says nothing about the global set.
inline void Simulation::announce_waiting(SimulatedRank& r) {
  for (const OperationKey& key : std::exchange(r.unannounced, {})) {
    if (r.joined && key.first == kGlobalProcessSet) {
      r.unannounced.push_back(key);
    } else {
      announce(r, key);
    }
  }
}

inline void Simulation::announce(SimulatedRank& r, const OperationKey& key) {
  const auto found = r.operations.find(key);
  if (found == r.operations.end()) return;
  Operation& operation = found->second;
  operation.announced = true;
  operation.announced_id = r.replica->find(operation.request);
  Announcement& a = r.own.announcements.emplace_back();
  if (operation.announced_id) {
    a.what = *operation.announced_id;
  } else {
    a.what = operation.request;
  }
  a.ranks = RankSet(r.rank);
  a.urgent = below(4) == 0;
  if (operation.request.kind == Collective::kJoin) r.joined = true;
}

inline bool Simulation::mark_something(SimulatedRank& r) {
  if (r.operations.empty() || r.ended) return false;
  auto it = r.operations.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(below(r.operations.size())));
  if (!it->second.announced) return false;
  r.own.urgent.push_back({it->first.first, it->first.second});
  return true;
}

inline bool Simulation::progress(SimulatedRank& r) {
  bool acted = !r.own.empty();
  const UpMessage own = std::exchange(r.own, {});
  if (r.coordinator) {
    if (acted) r.coordinator->receive(own, now_);
    const auto entries = r.coordinator->take_entries(now_);
    receive_entries(r, entries);
    return acted || !entries.empty();
  }
  if (acted) r.aggregator->receive(own, *r.replica, now_);
  const UpMessage message = r.aggregator->take(now_);
  if (message.empty()) return acted;
  up_[static_cast<std::size_t>(r.rank)].push_back(encode(Message(message)));
  return true;
}

inline bool Simulation::deliver_up(SimulatedRank& child) {
  auto& queue = up_[static_cast<std::size_t>(child.rank)];
  if (queue.empty()) return false;
  Message message;
  if (!decode(queue.front(), message).is_ok()) blame(child, "its message does not decode");
  queue.pop_front();
  SimulatedRank& parent = ranks_[static_cast<std::size_t>(child.parent)];
  if (parent.coordinator) {
    parent.coordinator->receive(std::get<UpMessage>(message), now_);
  } else {
    parent.aggregator->receive(std::get<UpMessage>(message), *parent.replica, now_);
  }
  if (below(2) == 0) progress(parent);
  return true;
}

inline bool Simulation::deliver_down(SimulatedRank& child) {
  auto& queue = down_[static_cast<std::size_t>(child.rank)];
  if (queue.empty()) return false;
  Message message;
  if (!decode(queue.front(), message).is_ok()) blame(child, "its parent's message does not decode");
  queue.pop_front();
  receive_entries(child, std::get<DownMessage>(message).entries);
  return true;
}

inline void Simulation::receive_entries(SimulatedRank& r, const std::vector<LogEntry>& entries) {
  if (entries.empty()) return;
  for (const LogEntry& entry : entries) {
    if (r.ended) blame(r, "an entry after the end");
    r.log.push_back(encode(Message(DownMessage{{entry}})));
    r.replica->apply(entry);
    if (r.aggregator) r.aggregator->apply(entry, *r.replica);
    std::visit([&](const auto& specific) { apply(r, specific); }, entry);
  }
  for (const Rank child : r.children) {
    down_[static_cast<std::size_t>(child)].push_back(encode(Message(DownMessage{entries})));
  }
}

// --- Entries on one rank -------------------------------------------------------------------------

inline void Simulation::apply(SimulatedRank& r, const ExecuteEntry& entry) {
  const auto requests = r.replica->resolve(entry);
  const Request& first = *requests.front();
  for (const auto& request : requests) {
    const bool fused_rightly = request->kind == first.kind && request->dtype == first.dtype &&
                               request->process_set == first.process_set &&
                               request->op == first.op && request->postscale == first.postscale;
    if (!fused_rightly) blame(r, "fused " + request->name + " with " + first.name);
    const RankSet* members = r.replica->member_ranges(request->process_set);
    if (members == nullptr) {
      blame(r, request->name + " executes in an unknown set");
      continue;
    }
    if (!members->contains(r.rank)) continue;
    const OperationKey key{request->process_set, request->name};
    const auto found = r.operations.find(key);
    if (found == r.operations.end() || !found->second.announced) {
      const bool as_joined = r.joined && key.first == kGlobalProcessSet;
      if (!as_joined) blame(r, request->name + " executes, but was not announced here");
      continue;
    }
    if (!same_signature(*request, found->second.request)) blame(r, request->name + " differs");
    if (request->group_size > 1 && request->kind == Collective::kAllreduce) {
      const auto in_group = std::count_if(requests.begin(), requests.end(), [&](const auto& other) {
        return other->group == request->group;
      });
      if (in_group != request->group_size) blame(r, "group " + request->group + " was torn apart");
    }
    finish(r, key, Ending::kExecuted, "");
  }
}

inline void Simulation::apply(SimulatedRank& r, const FailEntry& entry) {
  for (const std::string& name : entry.names) {
    finish(r, {entry.process_set, name}, Ending::kFailed, entry.text);
  }
}

inline void Simulation::apply(SimulatedRank& r, const EvictEntry& entry) {
  for (auto& [key, operation] : r.operations) {
    if (!operation.announced_id) continue;
    if (std::find(entry.ids.begin(), entry.ids.end(), *operation.announced_id) == entry.ids.end()) {
      continue;
    }
    operation.announced_id.reset();
    if (r.joined && key.first == kGlobalProcessSet) {
      r.unannounced.push_back(key);
    } else {
      announce(r, key);
    }
  }
}

inline void Simulation::apply(SimulatedRank& r, const AddProcessSetEntry& entry) {
  const auto found = r.operations.find({kGlobalProcessSet, entry.name});
  if (found == r.operations.end()) return blame(r, "added " + entry.name + " unasked");
  r.slots[found->second.adds_slot] = entry.id;
  finish(r, found->first, Ending::kExecuted, "");
}

inline void Simulation::apply(SimulatedRank& r, const RemoveProcessSetEntry& entry) {
  for (auto it = r.operations.begin(); it != r.operations.end();) {
    const OperationKey key = (it++)->first;
    if (key.first == entry.id) finish(r, key, Ending::kFailed, "removed");
  }
  finish(r, {kGlobalProcessSet, entry.name}, Ending::kExecuted, "");
}

inline void Simulation::apply(SimulatedRank& r, const JoinedEntry&) {
  if (!r.joined) blame(r, "all have joined, but this rank has not");
  r.joined = false;
  finish(r, {kGlobalProcessSet, "join"}, Ending::kExecuted, "");
  announce_waiting(r);
}

inline void Simulation::apply(SimulatedRank& r, const ShutdownEntry&) {
  r.ended = true;
  r.rounds.clear();
  r.operations.clear();
  r.own = {};
}

inline void Simulation::finish(SimulatedRank& r, const OperationKey& key, Ending outcome,
                               const std::string& why) {
  const auto found = r.operations.find(key);
  if (found == r.operations.end()) return;  // not a member, or joined
  const Ending expected = found->second.expected;
  if (expected != Ending::kEither && expected != outcome) {
    blame(r, key.second + (outcome == Ending::kFailed ? " failed: " + why : " was executed"));
  }
  r.operations.erase(found);
}

// --- Verdict -------------------------------------------------------------------------------------

inline bool Simulation::all_done() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const SimulatedRank& r) {
    return r.operations.empty() && r.rounds.empty();
  });
}

inline bool Simulation::nothing_left() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const SimulatedRank& r) {
    return r.coordinator ? !r.coordinator->next_deadline() : !r.aggregator->next_deadline();
  });
}

inline std::string Simulation::fault() const {
  for (const SimulatedRank& r : ranks_) {
    if (!r.fault.empty()) return r.fault;
    if (r.log != ranks_[0].log) return "rank " + std::to_string(r.rank) + " has another log";
  }
  return "";
}

}  // namespace hvd::samples
