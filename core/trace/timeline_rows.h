// TimelineRows: what happens to tensors, turned into the events of a Chrome trace. Pure.
//
// Each tensor is a row (a "process" of the trace) on which phases are strictly nested and never overlap:
//
//   NEGOTIATE_ALLREDUCE { 0 1 }   ALLREDUCE { QUEUE   GLOO_ALLREDUCE { WAIT_FOR_DATA } }
//
// Another rank may announce a tensor again while this rank still executes it: what belongs to the next
// round is held back until the row is free.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/types.h"

namespace hvd {

using TracePoint = std::chrono::steady_clock::time_point;

// Ranks [first, first + count) are ready for the tensor.
struct TraceAnnounced {
  Rank first = 0;
  Rank count = 1;
};
// All members are ready; `has_data`: it will be executed and then TraceExecuted follows.
struct TraceAgreed {
  bool has_data = true;
};
struct TraceExecuted {
  TracePoint started, finished;
  TracePoint wait_began{};             // others' data were not there
  std::chrono::nanoseconds waited{0};  // in all; shown as one
  DataType dtype = DataType::kFloat32;
  Shape shape;
  std::int64_t bytes = 0;
  std::int32_t fused = 1;  // tensors in the response
  std::uint64_t response = 0;
};
struct TraceFailed {
  std::string text;
};

// Something that happens to one tensor.
struct TensorTrace {
  TracePoint time;
  ProcessSetId process_set = kGlobalProcessSet;
  std::string name;
  Collective kind = Collective::kAllreduce;
  std::variant<TraceAnnounced, TraceAgreed, TraceExecuted, TraceFailed> what;
};
// A thread of the program waited for the tensor `name` (empty: not known).
struct WaitTrace {
  TracePoint began, ended;
  std::int64_t thread = 0;
  std::string name;
};
struct CycleTrace {
  TracePoint time;
};
struct StepTrace {
  TracePoint time;
  std::uint64_t step = 0;
};
using Trace = std::variant<TensorTrace, WaitTrace, CycleTrace, StepTrace>;

// What the head of a file says about the rank.
struct TraceIdentity {
  Rank rank = 0;
  Rank size = 1;
  std::vector<std::string> hosts;  // of every rank
  double clock_offset_micros = 0;  // this rank's clock less rank 0's
  double clock_error_micros = 0;
};

class TimelineRows {
 public:
  explicit TimelineRows(TraceIdentity identity) : identity_(std::move(identity)) {}

  // All functions append lines, one event each.
  // Begins a file at `now`, which is `epoch_micros` since 1970; rows that are open are opened in it.
  void begin_file(std::string& out, TracePoint now, std::int64_t epoch_micros);
  // Closes what is open, so that the file can end here.
  void end_file(std::string& out, TracePoint now);
  void add(std::string& out, const Trace& trace);

 private:
  enum class Phase { kIdle, kNegotiating, kExecuting };
  struct Row {
    std::string title;  // as JSON
    Phase phase = Phase::kIdle;
    Collective kind = Collective::kAllreduce;
    std::int64_t pid = 0;  // 0: not in this file yet
    TracePoint last{};
    std::deque<TensorTrace> held;
  };
  struct Key {
    ProcessSetId set;
    std::string name;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      return std::hash<std::string>()(key.name) ^ static_cast<std::size_t>(key.set) * 0x9e3779b9;
    }
  };

  void write(std::string& out, const TensorTrace& trace);
  void write(std::string& out, const WaitTrace& trace);
  void write(std::string& out, const CycleTrace& trace);
  void write(std::string& out, const StepTrace& trace);
  void take(std::string& out, Row& row, const TensorTrace& trace);
  void take(std::string& out, Row& row, const TensorTrace& trace, const TraceAnnounced& what);
  void take(std::string& out, Row& row, const TensorTrace& trace, const TraceAgreed& what);
  void take(std::string& out, Row& row, const TensorTrace& trace, const TraceExecuted& what);
  void take(std::string& out, Row& row, const TensorTrace& trace, const TraceFailed& what);
  void open_negotiation(std::string& out, Row& row, TracePoint time);
  void close_negotiation(std::string& out, Row& row, TracePoint time);
  void introduce(std::string& out, std::int64_t pid, const std::string& title);
  void begin(std::string& out, Row& row, TracePoint time, std::string_view name);
  void end(std::string& out, Row& row, TracePoint time);
  void append_time(std::string& out, TracePoint time) const;

  TraceIdentity identity_;
  std::unordered_map<Key, Row, KeyHash> rows_;
  std::int64_t next_pid_ = 1;
  std::int64_t waits_pid_ = 0;
  std::map<std::int64_t, TracePoint> last_wait_;  // by thread
  TracePoint start_{};
};

}  // namespace hvd
