// What ranks say to each other while they negotiate. Plain values; bytes are made in codec.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/types.h"
#include "wire/rank_set.h"

namespace hvd {

using CacheId = std::uint32_t;  // never reused within a job

// What one rank wants done with one tensor. Two ranks agree when `agrees` finds no difference.
struct Request {
  Collective kind = Collective::kAllreduce;
  std::string name;
  ProcessSetId process_set = kGlobalProcessSet;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Rank root = -1;            // broadcast: global rank
  std::int32_t device = -1;  // -1: host memory
  double prescale = 1.0;
  double postscale = 1.0;
  Shape shape;        // this rank's input
  std::string group;  // name of the group, empty for none; members execute together
  std::int32_t group_size = 0;
  bool cacheable = true;         // false for generated names, which never come again
  std::vector<Rank> ranks;       // add_process_set: the members; remove_process_set: empty
  ProcessSetId target_set = -1;  // remove_process_set

  bool operator==(const Request&) const = default;
};

// One request, made by every rank of `ranks`. Either a cache id or the full request.
struct Announcement {
  std::variant<CacheId, Request> what;
  RankSet ranks;
  bool urgent = false;  // a caller is blocked on it: do not wait for more to fuse
};

// A caller began to wait for something announced before.
struct UrgentMark {
  ProcessSetId process_set = kGlobalProcessSet;
  std::string name;
  bool operator==(const UrgentMark&) const = default;
};

// What a rank wants of the timeline: a path begins one, an empty path ends it.
struct TimelineCommand {
  Rank rank = -1;  // who asks, and the number of its command: both come back with the entry
  std::uint64_t number = 0;
  std::string path;
  bool mark_cycles = false;
  bool operator==(const TimelineCommand&) const = default;
};

// Child to parent in the tree.
struct UpMessage {
  std::vector<Announcement> announcements;
  std::vector<UrgentMark> urgent;
  bool shutdown = false;  // somebody below asked for shutdown
  std::vector<TimelineCommand> timeline;

  bool empty() const {
    return announcements.empty() && urgent.empty() && timeline.empty() && !shutdown;
  }
};

// One tensor of a response: a cache id, a full request, or both (the id is assigned here).
struct ResponseItem {
  std::optional<CacheId> id;
  std::optional<Request> request;
};

// --- Entries of the response log -----------------------------------------------------------------

// Execute these tensors together, in this order. All items have equal kind, process set, dtype,
// device, op and factors (kinds that never fuse have one item).
struct ExecuteEntry {
  std::vector<ResponseItem> items;
};

// These operations failed on all ranks that announced them; nobody executes them.
struct FailEntry {
  ProcessSetId process_set = kGlobalProcessSet;
  std::vector<std::string> names;
  std::string text;
};

// These cache ids are void. A rank that has announced one and not seen it executed announces the
// full request again.
struct EvictEntry {
  std::vector<CacheId> ids;
};

struct AddProcessSetEntry {
  std::string name;  // of the request, to find who waits for it
  ProcessSetId id = -1;
  std::vector<Rank> ranks;
};

struct RemoveProcessSetEntry {
  std::string name;
  ProcessSetId id = -1;
};

struct JoinedEntry {
  Rank last_rank = -1;  // every rank has joined; this one was the last
};

struct ShutdownEntry {
  std::string text;  // empty: the ordinary end
};

// The timeline begins or ends, on all ranks that write one.
struct TimelineEntry {
  TimelineCommand command;
  std::string error;  // why rank 0 could not do it; empty: done
};

using LogEntry = std::variant<ExecuteEntry, FailEntry, EvictEntry, AddProcessSetEntry,
                              RemoveProcessSetEntry, JoinedEntry, ShutdownEntry, TimelineEntry>;

// Parent to child: consecutive entries of the log.
struct DownMessage {
  std::vector<LogEntry> entries;
};

// Either way, any edge: a rank died or its engine failed. Never merged, sent ahead of the rest.
struct AbortMessage {
  Rank culprit = -1;  // -1: not known
  std::string text;
};

// Either way: the sender closes this connection on purpose; the end of stream that follows is no death.
struct GoodbyeMessage {};

// Parent to child, to all ranks: something has stalled. Every rank writes down what it last did, and those of
// `ranks` answer.
struct InquiryMessage {
  std::uint32_t number = 0;
  RankSet ranks;
  std::string text;  // the stall report
};

// Something that a rank has submitted and that has not ended.
struct OperationInFlight {
  ProcessSetId process_set = kGlobalProcessSet;
  std::string name;
  double seconds = 0;  // since its submission
};

// Child to parent: the answer of one rank to an inquiry.
struct AnswerMessage {
  std::uint32_t number = 0;  // of the inquiry
  Rank rank = -1;
  std::vector<OperationInFlight> in_flight;
  std::vector<OperationInFlight> blocked;  // in which callers wait, and for how long
  std::string stacks;                      // Python stacks of all threads
};

using Message = std::variant<UpMessage, DownMessage, AbortMessage, GoodbyeMessage, InquiryMessage,
                             AnswerMessage>;

}  // namespace hvd
