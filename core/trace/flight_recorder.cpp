#include "trace/flight_recorder.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "trace/json.h"

namespace hvd {

namespace {

constexpr std::size_t kUsualName = 120;
constexpr std::size_t kUsualDimensions = 4;

}  // namespace

// All memory is taken here. Taken little by little while a program trains, it would lie among that program's
// own and break it up: a step of the VGG-16-sized model then had a fifth more page faults and took longer.
FlightRecorder::FlightRecorder(std::size_t capacity) : ring_(capacity) {
  for (FlightRecord& record : ring_) {
    record.request.name.reserve(kUsualName);
    record.request.shape.reserve(kUsualDimensions);
  }
}

std::uint64_t FlightRecorder::submitted(const Request& request, TimePoint now) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t serial = next_++;
  const std::uint64_t set_serial = next_in_set_[request.process_set]++;
  if (ring_.empty()) return serial;
  FlightRecord& record = ring_[serial % ring_.size()];
  record.serial = serial;
  record.set_serial = set_serial;
  record.request = request;
  record.state = FlightRecord::State::kSubmitted;
  record.submitted = now;
  record.agreed = record.started = record.finished = {};
  record.error.clear();
  return serial;
}

template <class Change>
void FlightRecorder::change(std::uint64_t serial, Change change) {
  if (ring_.empty()) return;
  const std::lock_guard lock(mutex_);
  FlightRecord& record = ring_[serial % ring_.size()];
  if (record.serial == serial) change(record);  // else it was overwritten
}

void FlightRecorder::announced(std::uint64_t serial) {
  change(serial, [](FlightRecord& record) { record.state = FlightRecord::State::kAnnounced; });
}

void FlightRecorder::agreed(std::uint64_t serial, std::uint64_t response, TimePoint now) {
  change(serial, [&](FlightRecord& record) {
    record.response = response;
    record.agreed = now;
  });
}

void FlightRecorder::started(std::uint64_t serial, TimePoint now) {
  change(serial, [&](FlightRecord& record) {
    record.state = FlightRecord::State::kExecuting;
    record.started = now;
  });
}

void FlightRecorder::finished(std::uint64_t serial, TimePoint now, std::string_view error) {
  change(serial, [&](FlightRecord& record) {
    record.state = error.empty() ? FlightRecord::State::kDone : FlightRecord::State::kFailed;
    record.finished = now;
    record.error = error;
  });
}

std::uint64_t FlightRecorder::recorded() const {
  const std::lock_guard lock(mutex_);
  return next_;
}

std::vector<FlightRecord> FlightRecorder::records() const {
  const std::lock_guard lock(mutex_);
  const auto used = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(next_, ring_.size()));
  std::vector<FlightRecord> ordered(ring_.begin(), ring_.begin() + used);
  std::ranges::sort(ordered, {}, &FlightRecord::serial);
  return ordered;
}

namespace {

using TimePoint = FlightRecorder::TimePoint;

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string_view name_of(FlightRecord::State state) {
  switch (state) {
    case FlightRecord::State::kSubmitted:
      return "submitted";
    case FlightRecord::State::kAnnounced:
      return "announced";
    case FlightRecord::State::kExecuting:
      return "executing";
    case FlightRecord::State::kDone:
      return "done";
    default:
      return "failed";
  }
}

double seconds(TimePoint time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

void append_time(std::string& out, std::string_view key, TimePoint time) {
  out += ",\"";
  out += key;
  out += "\":";
  if (time == TimePoint{}) {
    out += "null";
  } else {
    json::append_number(out, seconds(time));
  }
}

void append_text(std::string& out, std::string_view key, std::string_view value) {
  out += ",\"";
  out += key;
  out += "\":";
  json::append_string(out, value);
}

void append_number(std::string& out, std::string_view key, std::int64_t value) {
  out += ",\"";
  out += key;
  out += "\":";
  json::append_integer(out, value);
}

void append_record(std::string& out, const FlightRecord& record) {
  const Request& request = record.request;
  out += "{\"serial\":";
  json::append_integer(out, static_cast<std::int64_t>(record.serial));
  append_number(out, "process_set", request.process_set);
  append_number(out, "set_serial", static_cast<std::int64_t>(record.set_serial));
  append_text(out, "name", request.name);
  append_text(out, "kind", lower(hvd::name_of(request.kind)));
  append_text(out, "dtype", hvd::name_of(request.dtype));
  out += ",\"shape\":";
  json::append_list(out, request.shape);
  append_text(out, "op", lower(hvd::name_of(request.op)));
  append_number(out, "root", request.root);
  append_text(out, "group", request.group);
  append_number(out, "bytes",
                element_count(request.shape) * static_cast<std::int64_t>(size_of(request.dtype)));
  append_text(out, "state", name_of(record.state));
  append_time(out, "submitted", record.submitted);
  append_time(out, "agreed", record.agreed);
  append_time(out, "started", record.started);
  append_time(out, "finished", record.finished);
  if (record.agreed == TimePoint{}) {
    out += ",\"response\":null";
  } else {
    append_number(out, "response", static_cast<std::int64_t>(record.response));
  }
  if (!record.error.empty()) append_text(out, "error", record.error);
  out += '}';
}

}  // namespace

std::string flight_dump_text(const FlightRecorder& recorder, const FlightDump& dump) {
  std::string out = R"({"format":"horovod-flight-recorder","version":1,"rank":)";
  json::append_integer(out, dump.rank);
  append_number(out, "size", static_cast<std::int64_t>(dump.hosts.size()));
  append_text(out, "host", dump.hosts.at(static_cast<std::size_t>(dump.rank)));
  out += ",\"hosts\":[";
  for (std::size_t i = 0; i < dump.hosts.size(); ++i) {
    if (i > 0) out += ',';
    json::append_string(out, dump.hosts[i]);
  }
  out += ']';
  append_number(out, "pid", ::getpid());
  append_text(out, "reason", dump.reason);
  append_text(out, "text", dump.text);
  out += ",\"time\":";
  json::append_number(
      out,
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  append_time(out, "monotonic", std::chrono::steady_clock::now());
  append_number(out, "capacity", static_cast<std::int64_t>(recorder.capacity()));
  append_number(out, "recorded", static_cast<std::int64_t>(recorder.recorded()));
  out += ",\"process_sets\":{";
  for (bool first_set = true; const auto& [id, ranks] : dump.process_sets) {
    out += std::exchange(first_set, false) ? "\"" : ",\"";
    json::append_integer(out, id);
    out += "\":";
    json::append_list(out, std::vector<std::int64_t>(ranks.begin(), ranks.end()));
  }
  out += "},\n\"operations\":[";
  bool first = true;
  for (const FlightRecord& record : recorder.records()) {
    out += first ? "\n" : ",\n";
    first = false;
    append_record(out, record);
  }
  out += "],\n\"blocked\":[";
  for (std::size_t i = 0; i < dump.blocked.size(); ++i) {
    out += i > 0 ? ",{\"name\":" : "{\"name\":";
    json::append_string(out, dump.blocked[i].first);
    append_time(out, "since", dump.blocked[i].second);
    out += '}';
  }
  out += "],\n\"stacks\":";
  json::append_string(out, dump.stacks);
  out += "}\n";
  return out;
}

}  // namespace hvd
