// Coordinator::State: what the root knows, and the steps of an operation's way into the log.
// Private to the coordinator: coordinator.cpp (the public face and announcements),
// coordinator_completion.cpp, coordinator_log.cpp.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/cache_advice.h"
#include "engine/coordinator.h"
#include "engine/eviction_order.h"
#include "engine/pending.h"
#include "engine/replica.h"
#include "engine/stall.h"

namespace hvd {

struct Coordinator::State {
  using Members = std::span<Pending* const>;

  struct Ready {
    Pending* pending;
    std::int32_t group;  // number within this flush; -1: none
  };

  State(const Config& config_in, Rank world_size_in, bool patient_in);

  // Announcements
  void receive(const Announcement& a, TimePoint now);
  void receive(const UrgentMark& mark, TimePoint now);
  void receive_join(const RankSet& ranks, TimePoint now);
  Pending& open(const Request& request, std::shared_ptr<const Request> shared, TimePoint now);
  bool is_complete(const Pending& pending, const RankSet& members) const;
  void reject(const NameView& name, std::string text);

  // Completion
  void complete(Pending& pending, TimePoint now);
  std::optional<std::string> refusal(const Pending& pending) const;
  bool is_grouped(const Request& request) const;
  void complete_in_group(Pending& pending, TimePoint now);
  void change_process_sets(Pending& pending);
  void remove_process_set(const RemoveProcessSetEntry& entry);
  void make_ready(Members members, bool as_group, TimePoint now);
  void fail(Members members, const std::string& text);
  std::vector<Pending*> all_pending(const std::vector<Stage>& stages);
  void drop(Pending& pending);

  // The log
  bool flush_due(TimePoint now) const;
  void flush();
  std::vector<std::vector<std::size_t>> plan() const;
  void execute(Members members);
  std::optional<ResponseItem> cached_item(Pending& pending, EvictEntry& evicted);
  bool make_room(EvictEntry& evicted, std::size_t assigned);
  void give_up_cache();
  void append(LogEntry entry);
  void end(std::string text);

  // Stall
  std::optional<TimePoint> shutdown_due() const;
  std::vector<StalledTensor> stalled(TimePoint now) const;
  std::vector<const Pending*> overdue(TimePoint now) const;
  RankSet missing_from(const Pending& pending) const;

  Config config;
  Rank world_size;
  RankSet everybody;
  bool patient;
  std::chrono::nanoseconds cycle;
  Replica replica;
  EvictionOrder eviction_order;
  CacheAdvice advice;
  StallClock stall;
  Stragglers stragglers;
  bool cache_enabled = true;
  CacheId next_id = 0;
  ProcessSetId highest_set = 0;  // that ever existed

  PendingTable pending;
  // Complete members of incomplete groups, by (process set, group); views into the first member.
  std::unordered_map<NameView, std::vector<Pending*>, NameViewHash> groups;
  RankSet joined;

  std::vector<Ready> ready;
  std::int64_t ready_bytes = 0;
  std::int32_t ready_groups = 0;
  TimePoint ready_since;
  bool flush_now = false;

  std::vector<LogEntry> out;
  bool shutdown_wanted = false;
  bool ended = false;
};

// "Allreduce", as texts for users name an operation.
std::string title_of(Collective kind);

}  // namespace hvd
