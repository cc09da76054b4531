// FlightRecorder: the last operations of this rank and how far each has come, for the time when
// somebody asks why a job hangs or has ended. Safe from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "wire/messages.h"

namespace hvd {

struct FlightRecord {
  using TimePoint = std::chrono::steady_clock::time_point;
  enum class State : std::uint8_t { kSubmitted, kAnnounced, kExecuting, kDone, kFailed };

  std::uint64_t serial = 0;      // among all operations of the rank, from 0
  std::uint64_t set_serial = 0;  // among those of the process set
  Request request;
  State state = State::kSubmitted;
  TimePoint submitted{}, agreed{}, started{}, finished{};  // zero: not yet
  std::uint64_t response = 0;                              // valid once agreed
  std::string error;
};

class FlightRecorder {
 public:
  using TimePoint = FlightRecord::TimePoint;

  // 0: remembers nothing.
  explicit FlightRecorder(std::size_t capacity);

  // Returns its serial.
  std::uint64_t submitted(const Request& request, TimePoint now);
  void announced(std::uint64_t serial);
  void agreed(std::uint64_t serial, std::uint64_t response, TimePoint now);
  void started(std::uint64_t serial, TimePoint now);
  void finished(std::uint64_t serial, TimePoint now, std::string_view error);

  std::uint64_t recorded() const;
  std::size_t capacity() const { return ring_.size(); }
  std::vector<FlightRecord> records() const;  // oldest first

 private:
  template <class Change>
  void change(std::uint64_t serial, Change change);

  mutable std::mutex mutex_;
  std::uint64_t next_ = 0;
  std::unordered_map<ProcessSetId, std::uint64_t> next_in_set_;
  std::vector<FlightRecord> ring_;  // its slots are written over, oldest first
};

// Who wrote a dump, when and why.
struct FlightDump {
  Rank rank = 0;
  std::vector<std::string> hosts;  // of every rank
  std::string reason;              // one word: abort, stall, signal, call
  std::string text;
  std::vector<std::pair<std::string, FlightRecorder::TimePoint>>
      blocked;  // callers, and since when
  std::string stacks;
  std::map<ProcessSetId, std::vector<Rank>> process_sets;
};

// The dump as JSON; see docs/flight-recorder.md.
std::string flight_dump_text(const FlightRecorder& recorder, const FlightDump& dump);

}  // namespace hvd
