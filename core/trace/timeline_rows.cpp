#include "trace/timeline_rows.h"

#include <algorithm>

#include "trace/json.h"

namespace hvd {

namespace {

// The name of the activity in which data move. The built-in backend stands for Gloo's.
std::string_view activity_of(Collective kind) {
  switch (kind) {
    case Collective::kAllreduce:
      return "GLOO_ALLREDUCE";
    case Collective::kAllgather:
      return "GLOO_ALLGATHER";
    case Collective::kBroadcast:
      return "GLOO_BCAST";
    case Collective::kAlltoall:
      return "GLOO_ALLTOALL";
    case Collective::kReducescatter:
      return "GLOO_REDUCESCATTER";
    default:
      return "GLOO";
  }
}

}  // namespace

void TimelineRows::begin_file(std::string& out, TracePoint now, std::int64_t epoch_micros) {
  start_ = now;
  next_pid_ = 1;
  waits_pid_ = 0;
  last_wait_.clear();
  out += R"({"name":"process_name","ph":"M","pid":0,"args":{"name":"Horovod",)";
  out += R"("start_time_since_epoch_in_micros":)";
  json::append_integer(out, epoch_micros);
  out += R"(,"rank":)";
  json::append_integer(out, identity_.rank);
  out += R"(,"size":)";
  json::append_integer(out, identity_.size);
  out += R"(,"host":)";
  const auto rank = static_cast<std::size_t>(identity_.rank);
  json::append_string(out, rank < identity_.hosts.size() ? identity_.hosts[rank] : "");
  out += R"(,"hosts":[)";
  for (std::size_t i = 0; i < identity_.hosts.size(); ++i) {
    if (i > 0) out += ',';
    json::append_string(out, identity_.hosts[i]);
  }
  out += R"(],"clock_offset_micros":)";
  json::append_number(out, identity_.clock_offset_micros);
  out += R"(,"clock_error_micros":)";
  json::append_number(out, identity_.clock_error_micros);
  out += ",\"format\":1}}\n";
  out += "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":0,\"args\":{\"sort_index\":0}}\n";
  std::erase_if(rows_, [](const auto& entry) {
    return entry.second.phase == Phase::kIdle && entry.second.held.empty();
  });
  for (auto& [key, row] : rows_) {
    row.pid = 0;
    row.last = now;
    if (row.phase == Phase::kNegotiating) {
      open_negotiation(out, row, now);
    } else if (row.phase == Phase::kExecuting) {
      begin(out, row, now, name_of(row.kind));
      begin(out, row, now, "QUEUE");
    }
  }
}

void TimelineRows::end_file(std::string& out, TracePoint now) {
  for (auto& [key, row] : rows_) {
    if (row.phase == Phase::kIdle) continue;
    end(out, row, now);
    if (row.phase == Phase::kExecuting) end(out, row, now);
  }
}

void TimelineRows::add(std::string& out, const Trace& trace) {
  std::visit([&](const auto& specific) { write(out, specific); }, trace);
}

void TimelineRows::write(std::string& out, const TensorTrace& trace) {
  Row& row = rows_[{trace.process_set, trace.name}];
  if (row.title.empty()) {
    std::string title = trace.name;
    if (trace.process_set != kGlobalProcessSet) {
      title += " (process set " + std::to_string(trace.process_set) + ")";
    }
    row.title = json::quoted(title);
  }
  const bool is_busy = row.phase == Phase::kExecuting;
  if (!std::holds_alternative<TraceExecuted>(trace.what) && (is_busy || !row.held.empty())) {
    row.held.push_back(trace);
    return;
  }
  take(out, row, trace);
  while (row.phase != Phase::kExecuting && !row.held.empty()) {
    const TensorTrace next = std::move(row.held.front());
    row.held.pop_front();
    take(out, row, next);
  }
}

void TimelineRows::take(std::string& out, Row& row, const TensorTrace& trace) {
  row.kind = trace.kind;
  std::visit([&](const auto& what) { take(out, row, trace, what); }, trace.what);
}

void TimelineRows::take(std::string& out, Row& row, const TensorTrace& trace,
                        const TraceAnnounced& what) {
  if (row.phase == Phase::kIdle) open_negotiation(out, row, trace.time);
  row.last = std::max(row.last, trace.time);
  for (Rank rank = what.first; rank < what.first + what.count; ++rank) {
    out += R"({"name":")";
    json::append_integer(out, rank);
    out += R"(","ph":"X","dur":0,"ts":)";
    append_time(out, row.last);
    out += R"(,"pid":)";
    json::append_integer(out, row.pid);
    out += "}\n";
  }
}

void TimelineRows::take(std::string& out, Row& row, const TensorTrace& trace,
                        const TraceAgreed& what) {
  close_negotiation(out, row, trace.time);
  begin(out, row, trace.time, name_of(row.kind));
  if (what.has_data) {
    begin(out, row, trace.time, "QUEUE");
    row.phase = Phase::kExecuting;
  } else {
    end(out, row, trace.time);
  }
}

void TimelineRows::take(std::string& out, Row& row, const TensorTrace&, const TraceExecuted& what) {
  if (row.phase != Phase::kExecuting) return;  // its beginning was before the timeline's
  row.phase = Phase::kIdle;
  end(out, row, what.started);
  begin(out, row, what.started, activity_of(row.kind));
  if (what.waited > what.waited.zero()) {
    begin(out, row, what.wait_began, "WAIT_FOR_DATA");
    end(out, row, std::min(what.wait_began + what.waited, what.finished));
  }
  end(out, row, what.finished);
  row.last = std::max(row.last, what.finished);
  out += R"({"ph":"E","ts":)";
  append_time(out, row.last);
  out += R"(,"pid":)";
  json::append_integer(out, row.pid);
  out += R"(,"args":{"dtype":")";
  out += name_of(what.dtype);
  out += R"(","shape":")";
  json::append_list(out, what.shape);
  out += R"(","bytes":)";
  json::append_integer(out, what.bytes);
  out += R"(,"fused":)";
  json::append_integer(out, what.fused);
  out += R"(,"response":)";
  json::append_integer(out, static_cast<std::int64_t>(what.response));
  out += "}}\n";
}

void TimelineRows::take(std::string& out, Row& row, const TensorTrace& trace,
                        const TraceFailed& what) {
  close_negotiation(out, row, trace.time);
  begin(out, row, trace.time, "ERROR");
  out += R"({"ph":"E","ts":)";
  append_time(out, row.last);
  out += R"(,"pid":)";
  json::append_integer(out, row.pid);
  out += R"(,"args":{"text":)";
  json::append_string(out, what.text);
  out += "}}\n";
}

void TimelineRows::write(std::string& out, const WaitTrace& trace) {
  if (waits_pid_ == 0) {
    waits_pid_ = next_pid_++;
    introduce(out, waits_pid_, "\"synchronize\"");
  }
  TracePoint& last = last_wait_[trace.thread];
  const TracePoint began = std::max(trace.began, last);
  last = std::max(trace.ended, began);
  const auto append_rest = [&](TracePoint time) {
    append_time(out, time);
    out += R"(,"pid":)";
    json::append_integer(out, waits_pid_);
    out += R"(,"tid":)";
    json::append_integer(out, trace.thread);
  };
  out += R"({"name":"WAIT","ph":"B","ts":)";
  append_rest(began);
  if (!trace.name.empty()) {
    out += R"(,"args":{"tensor":)";
    json::append_string(out, trace.name);
    out += '}';
  }
  out += "}\n{\"ph\":\"E\",\"ts\":";
  append_rest(last);
  out += "}\n";
}

void TimelineRows::write(std::string& out, const CycleTrace& trace) {
  out += R"({"name":"CYCLE_START","ph":"i","s":"g","ts":)";
  append_time(out, trace.time);
  out += ",\"pid\":0}\n";
}

void TimelineRows::write(std::string& out, const StepTrace& trace) {
  out += R"({"name":"STEP","ph":"i","s":"p","ts":)";
  append_time(out, trace.time);
  out += R"(,"pid":0,"args":{"step":)";
  json::append_integer(out, static_cast<std::int64_t>(trace.step));
  out += "}}\n";
}

void TimelineRows::open_negotiation(std::string& out, Row& row, TracePoint time) {
  begin(out, row, time, "NEGOTIATE_" + std::string(name_of(row.kind)));
  row.phase = Phase::kNegotiating;
}

void TimelineRows::close_negotiation(std::string& out, Row& row, TracePoint time) {
  if (row.phase != Phase::kNegotiating) return;
  end(out, row, time);
  row.phase = Phase::kIdle;
}

void TimelineRows::introduce(std::string& out, std::int64_t pid, const std::string& title) {
  for (const std::string& event :
       {R"("process_name","ph":"M","pid":)" + std::to_string(pid) + R"(,"args":{"name":)" + title,
        R"("process_sort_index","ph":"M","pid":)" + std::to_string(pid) +
            R"(,"args":{"sort_index":)" + std::to_string(pid)}) {
    out += R"({"name":)" + event + "}}\n";
  }
}

void TimelineRows::begin(std::string& out, Row& row, TracePoint time, std::string_view name) {
  if (row.pid == 0) {
    row.pid = next_pid_++;
    introduce(out, row.pid, row.title);
  }
  row.last = std::max(row.last, time);
  out += R"({"name":")";
  out += name;
  out += R"(","ph":"B","ts":)";
  append_time(out, row.last);
  out += R"(,"pid":)";
  json::append_integer(out, row.pid);
  out += "}\n";
}

void TimelineRows::end(std::string& out, Row& row, TracePoint time) {
  row.last = std::max(row.last, time);
  out += R"({"ph":"E","ts":)";
  append_time(out, row.last);
  out += R"(,"pid":)";
  json::append_integer(out, row.pid);
  out += "}\n";
}

void TimelineRows::append_time(std::string& out, TracePoint time) const {
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(time - start_).count();
  json::append_thousandths(out, std::max<std::int64_t>(since, 0));
}

}  // namespace hvd
