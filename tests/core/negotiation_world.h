// Helpers for tests of negotiation: requests, announcements, and a root with its clock.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/coordinator.h"
#include "engine/replica.h"

namespace hvd::samples {

using namespace std::chrono_literals;

inline Request make_request(Collective kind, std::string name, Shape shape = {4},
                            ProcessSetId set = kGlobalProcessSet) {
  Request r;
  r.kind = kind;
  r.name = std::move(name);
  r.shape = std::move(shape);
  r.process_set = set;
  return r;
}

inline Request allreduce(std::string name, Shape shape = {4}, ProcessSetId set = 0) {
  return make_request(Collective::kAllreduce, std::move(name), std::move(shape), set);
}

inline Request in_group(Request r, std::string group, std::int32_t size) {
  r.group = std::move(group);
  r.group_size = size;
  return r;
}

inline UpMessage up(std::vector<Announcement> announcements) {
  UpMessage message;
  message.announcements = std::move(announcements);
  return message;
}

inline TimePoint start_of_time() { return TimePoint() + std::chrono::hours(1); }

// A root, its replica and a clock that a test moves. `log` is what `take_entries` gave so far.
struct Root {
  explicit Root(Rank world, Config config = {}, bool patient = false)
      : coordinator(config, world, patient), replica(world) {}

  void announce(const std::vector<Rank>& ranks, Request request, bool urgent = false) {
    coordinator.receive(up({{std::move(request), RankSet::of(ranks), urgent}}), now);
  }
  void announce(const std::vector<Rank>& ranks, CacheId id, bool urgent = false) {
    coordinator.receive(up({{id, RankSet::of(ranks), urgent}}), now);
  }
  void join(const std::vector<Rank>& ranks) {
    announce(ranks, make_request(Collective::kJoin, "join"));
  }
  void mark(const std::string& name, ProcessSetId set = 0) {
    UpMessage message;
    message.urgent.push_back({set, name});
    coordinator.receive(message, now);
  }

  std::vector<LogEntry> take() {
    std::vector<LogEntry> entries = coordinator.take_entries(now);
    for (const LogEntry& entry : entries) {
      replica.apply(entry);
      log.push_back(entry);
    }
    return entries;
  }
  // Entries after the cycle time, as one line: "execute a b; fail c; evict 3; add 1; ..."
  std::string settle() {
    now += 10ms;
    return text_of_entries(take());
  }

  std::string text_of_entries(const std::vector<LogEntry>& entries) {
    std::string text;
    for (const LogEntry& entry : entries) {
      if (!text.empty()) text += "; ";
      text += text_of_entry(entry);
    }
    return text;
  }

  // Full text of the only failure in the log.
  std::string failure() const {
    std::string text;
    for (const LogEntry& entry : log) {
      if (const auto* failed = std::get_if<FailEntry>(&entry)) text += failed->text;
    }
    return text;
  }

  Coordinator coordinator;
  Replica replica;
  TimePoint now = start_of_time();
  std::vector<LogEntry> log;

 private:
  std::string text_of_entry(const LogEntry& entry) {
    std::string text;
    if (const auto* execute = std::get_if<ExecuteEntry>(&entry)) {
      text = "execute";
      for (const ResponseItem& item : execute->items) {
        if (item.request) {
          text += " " + item.request->name;
          if (item.id) names[*item.id] = item.request->name;
        } else {
          text += " " + names[*item.id];
        }
      }
    } else if (const auto* failed = std::get_if<FailEntry>(&entry)) {
      text = "fail";
      for (const std::string& name : failed->names) text += " " + name;
    } else if (const auto* evicted = std::get_if<EvictEntry>(&entry)) {
      text = "evict";
      for (const CacheId id : evicted->ids) text += " " + std::to_string(id);
    } else if (const auto* added = std::get_if<AddProcessSetEntry>(&entry)) {
      text = "add " + std::to_string(added->id);
    } else if (const auto* removed = std::get_if<RemoveProcessSetEntry>(&entry)) {
      text = "remove " + std::to_string(removed->id);
    } else if (const auto* joined = std::get_if<JoinedEntry>(&entry)) {
      text = "joined " + std::to_string(joined->last_rank);
    } else {
      text = "shutdown";
    }
    return text;
  }

  std::map<CacheId, std::string> names;
};

}  // namespace hvd::samples
