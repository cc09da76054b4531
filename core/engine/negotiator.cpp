#include "engine/negotiator.h"

#include <algorithm>

#include "base/log.h"

namespace hvd {

namespace {

constexpr const char* kShutDownText =
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt "
    "to allreduce, allgather or broadcast a tensor after one of the ranks finished execution. If "
    "the "
    "shutdown was caused by an exception, you should see the exception in the log before the first "
    "shutdown message.";

// How long an inner node keeps an announcement that its subtree has not completed, before it tells the
// root who is there: well before the root would report a stall.
std::chrono::nanoseconds hold_time(const Config& config) {
  const double seconds = std::clamp(config.stall_warning_seconds / 4, 0.05, 5.0);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

std::size_t bytes_of(const Request& request) {
  return static_cast<std::size_t>(element_count(request.shape)) * size_of(request.dtype);
}

// Somebody waits for what it says.
bool is_pressing(const UpMessage& up) {
  return !up.urgent.empty() || !up.timeline.empty() || up.shutdown ||
         std::ranges::any_of(up.announcements, &Announcement::urgent);
}

}  // namespace

Negotiator::Negotiator(const Config& config, const Topology& topology, RankSet subtree, Tree& tree,
                       Inbox& inbox, OperationTable& table, Executor& executor, JobState& state,
                       bool patient, Observers observers)
    : config_(config),
      topology_(topology),
      tree_(tree),
      inbox_(inbox),
      table_(table),
      executor_(executor),
      state_(state),
      patient_(patient),
      observers_(observers),
      replica_(topology.size) {
  if (tree.is_root()) {
    coordinator_.emplace(config, topology.size, patient);
  } else {
    aggregator_.emplace(std::move(subtree), hold_time(config));
  }
  for (const auto& [id, ranks] : replica_.process_sets()) {
    sets_[id] = std::make_shared<const std::vector<Rank>>(ranks);
  }
}

void Negotiator::progress(TimePoint now, bool helping) {
  now_ = now;
  helping_ = helping;
  if (state_.aborted()) {
    spread_abort();
    return;
  }
  if (observers_.dumps.has_work()) answer_inquiries(now);
  UpMessage own = take_submissions();
  if (!own.empty()) pass_up(std::move(own), now);
  tree_.receive([this](Rank from, Message&& message) { receive(from, std::move(message)); });
  decide(now);
  if (UpMessage more = announce_again(); !more.empty()) {
    pass_up(std::move(more), now);
    decide(now);
  }
  tree_.flush(helping_ && state_.may_spin());
  tree_.ring_due(helping_ && state_.may_spin());
  if (const auto lost = tree_.take_lost_edge();
      lost && (state_.is_running() || !executor_.is_idle())) {
    state_.abort(lost->first, lost->second.text());
    spread_abort();
  }
}

void Negotiator::decide(TimePoint now) {
  if (coordinator_) {
    if (!timeline_commands_.empty()) decide_timeline();
    append(coordinator_->take_entries(now));
    report_warnings(now);
    return;
  }
  UpMessage up = aggregator_->take(now);
  if (up.empty()) return;
  const bool can_wait = patient_ && !is_pressing(up);
  tree_.send_up(std::move(up), can_wait);
}

// After a join, operations of the global set wait until all ranks have joined: the others count this
// rank as ready for everything and would be misled.
bool Negotiator::waits_for_join(const Operation& operation) const {
  return joined_ && operation.request.process_set == kGlobalProcessSet;
}

UpMessage Negotiator::announce_again() {
  UpMessage message;
  for (auto& operation : std::exchange(again_, {})) {
    const Request& request = operation->request;
    const bool in_flight = table_.find(request.process_set, request.name) == operation;
    if (!in_flight || operation->executing) continue;
    if (waits_for_join(*operation)) {
      again_.push_back(std::move(operation));
    } else {
      announce(*operation, true, message);
    }
  }
  return message;
}

UpMessage Negotiator::take_submissions() {
  UpMessage message;
  if (!inbox_.has_content()) return message;
  Inbox::Content content = inbox_.take();
  if (!state_.is_running()) {
    fail_waiting(state_.status());
    return message;
  }
  message.urgent = std::move(content.marks);
  message.timeline = std::move(content.timeline);
  message.shutdown = content.shutdown;
  message.announcements.reserve(content.operations.size());
  for (std::size_t i = 0; i < content.operations.size(); ++i) {
    const auto& operation = content.operations[i];
    const Request& request = operation->request;
    // It may have ended before it was announced: its process set was removed.
    if (table_.find(request.process_set, request.name) != operation) continue;
    if (waits_for_join(*operation)) {
      again_.push_back(operation);
      continue;
    }
    announce(*operation, content.urgent[i], message);
    joined_ |= operation->request.kind == Collective::kJoin;
  }
  return message;
}

void Negotiator::announce(Operation& operation, bool urgent, UpMessage& message) {
  Announcement& announcement = message.announcements.emplace_back();
  announcement.ranks = RankSet(topology_.rank);
  announcement.urgent = urgent;
  operation.announced = true;
  operation.announced_id =
      operation.request.cacheable ? replica_.find(operation.request) : std::nullopt;
  if (operation.announced_id) {
    announcement.what = *operation.announced_id;
    observers_.instruments.metrics.cache_hits.add();
  } else {
    announcement.what = operation.request;
    observers_.instruments.metrics.cache_misses.add();
  }
  observers_.instruments.recorder.announced(operation.serial);
  if (aggregator_) trace(operation.request, TraceAnnounced{topology_.rank, 1});
}

void Negotiator::pass_up(UpMessage&& message, TimePoint now) {
  if (coordinator_) {
    trace_announcements(message, now);
    std::ranges::move(message.timeline, std::back_inserter(timeline_commands_));
    coordinator_->receive(message, now);
  } else {
    aggregator_->receive(message, replica_, now);
  }
}

void Negotiator::receive(Rank from, Message&& message) {
  if (auto* up = std::get_if<UpMessage>(&message)) {
    pass_up(std::move(*up), now_);
  } else if (auto* down = std::get_if<DownMessage>(&message)) {
    append(std::move(down->entries));
  } else if (auto* abort = std::get_if<AbortMessage>(&message)) {
    if (state_.abort(abort->culprit, std::move(abort->text))) {
      log(LogLevel::kDebug, "abort received from rank " + std::to_string(from));
    }
    spread_abort();
  } else if (auto* inquiry = std::get_if<InquiryMessage>(&message)) {
    tree_.send_down(*inquiry);
    observers_.dumps.answer(*inquiry, now_);
  } else if (auto* answer = std::get_if<AnswerMessage>(&message)) {
    if (coordinator_) {
      inquiry_.receive(std::move(*answer));
    } else {
      tree_.send_up(*answer);
    }
  }
}

void Negotiator::append(std::vector<LogEntry>&& entries) {
  if (entries.empty()) return;
  DownMessage message{std::move(entries)};
  tree_.send_down(message);
  // The children get it before this rank begins to execute: they may be what it waits for.
  tree_.flush(helping_ && state_.may_spin());
  bool executes = false;
  for (const LogEntry& entry : message.entries) {
    executes |= std::holds_alternative<ExecuteEntry>(entry);
    apply(entry);
  }
  if (!coordinator_ || !executes) return;
  observers_.instruments.metrics.cycles.add();
  if (observers_.instruments.timeline.marks_cycles()) {
    observers_.instruments.timeline.record(CycleTrace{now_});
  }
}

void Negotiator::apply(const LogEntry& entry) {
  replica_.apply(entry);
  if (aggregator_) aggregator_->apply(entry, replica_);
  std::visit([this](const auto& specific) { apply(specific); }, entry);
}

std::shared_ptr<const std::vector<Rank>> Negotiator::members_of(ProcessSetId set) const {
  const std::lock_guard lock(sets_mutex_);
  const auto found = sets_.find(set);
  return found == sets_.end() ? nullptr : found->second;
}

void Negotiator::apply(const ExecuteEntry& entry) {
  const std::uint64_t sequence = ++sequence_;
  const auto requests = replica_.resolve(entry);
  const Request& first = *requests.front();
  if (first.process_set == kGlobalProcessSet) count_step(entry, requests);
  auto members = members_of(first.process_set);
  if (!std::binary_search(members->begin(), members->end(), topology_.rank)) return;
  if (first.kind == Collective::kBarrier) {
    finish(first.process_set, first.name, Status::ok());
    return;
  }
  QueuedWork item;
  item.members = std::move(members);
  item.work.sequence = sequence;
  item.work.kind = first.kind;
  item.work.dtype = first.dtype;
  item.work.op = first.op;
  item.work.prescale = first.prescale;
  item.work.postscale = first.postscale;
  item.work.root = first.root;
  item.work.device = first.device;
  item.work.process_set = first.process_set;
  for (const auto& request : requests) {
    std::shared_ptr<Operation> operation = table_.find(request->process_set, request->name);
    WorkTensor& tensor = item.work.tensors.emplace_back();
    // An earlier operation of this name may still be executing here after this rank joined.
    // One that was not announced (it waits for a join to end) is not meant either.
    if (operation != nullptr && (operation->executing || !operation->announced))
      operation = nullptr;
    if (operation != nullptr) {
      observers_.instruments.recorder.agreed(operation->serial, sequence, now_);
      observers_.instruments.metrics.negotiation_seconds.add(
          nanoseconds_between(operation->submitted, now_));
      trace(*request, TraceAgreed{});
      operation->executing = true;
      if (operation->handle->on_done) item.awaited = true;
      tensor = std::move(operation->tensor);
    } else {
      tensor.shape = request->shape;  // this rank has joined: zeros
    }
    item.bytes += bytes_of(*request);
    item.operations.push_back(std::move(operation));
  }
  executor_.queue(std::move(item), !helping_, now_);
}

// Ends what was announced under this name. An operation that was not (it waits for a join to end) is
// another one that happens to have the name.
void Negotiator::finish(ProcessSetId set, const std::string& name, const Status& status,
                        std::int64_t value) {
  const std::shared_ptr<Operation> operation = table_.find(set, name);
  if (operation == nullptr || !operation->announced || operation->executing) return;
  operation->handle->value = value;
  end(*operation, status);
}

void Negotiator::end(Operation& operation, const Status& status) {
  Metrics& metrics = observers_.instruments.metrics;
  if (status.is_ok()) {
    metrics.operations[static_cast<std::size_t>(operation.request.kind)].add();
    trace(operation.request, TraceAgreed{false});
  } else {
    metrics.failed.add();
    trace(operation.request, TraceFailed{status.text()});
  }
  observers_.instruments.recorder.finished(operation.serial, now_, status.text());
  table_.remove(operation);
  operation.finish(status);
}

void Negotiator::apply(const FailEntry& entry) {
  for (const std::string& name : entry.names) {
    finish(entry.process_set, name, Status::mismatch(entry.text));
  }
}

void Negotiator::apply(const EvictEntry& entry) {
  for (const auto& operation : table_.all()) {
    if (operation->executing || !operation->announced_id) continue;
    if (std::ranges::find(entry.ids, *operation->announced_id) == entry.ids.end()) continue;
    operation->announced = false;
    again_.push_back(operation);
  }
}

void Negotiator::apply(const AddProcessSetEntry& entry) {
  {
    const std::lock_guard lock(sets_mutex_);
    sets_[entry.id] = std::make_shared<const std::vector<Rank>>(*replica_.members(entry.id));
  }
  finish(kGlobalProcessSet, entry.name, Status::ok(), entry.id);
}

void Negotiator::apply(const RemoveProcessSetEntry& entry) {
  {
    const std::lock_guard lock(sets_mutex_);
    sets_.erase(entry.id);
  }
  // The root has failed those that it knows of; others have not reached it and never will.
  for (const auto& operation : table_.all()) {
    const Request& request = operation->request;
    if (request.process_set != entry.id || operation->executing) continue;
    end(*operation,
        Status::mismatch("Process set has been removed (tensor name: " + request.name + ")"));
  }
  finish(kGlobalProcessSet, entry.name, Status::ok(), entry.id);
}

void Negotiator::apply(const JoinedEntry& entry) {
  joined_ = false;
  for (const auto& operation : table_.all()) {
    if (operation->request.kind != Collective::kJoin) continue;
    finish(kGlobalProcessSet, operation->request.name, Status::ok(), entry.last_rank);
  }
}

void Negotiator::apply(const ShutdownEntry& entry) {
  if (!entry.text.empty()) {
    if (coordinator_) log(LogLevel::kError, entry.text);
    observers_.dumps.dump_now("stall", entry.text);
  }
  state_.shut_down(entry.text.empty() ? kShutDownText : entry.text + " " + kShutDownText);
  observers_.timeline.end(state_.status());
  observers_.steps.end();
  fail_waiting(state_.status());
}

void Negotiator::apply(const TimelineEntry& entry) {
  const TimelineCommand& command = entry.command;
  if (entry.error.empty()) {
    if (command.path.empty()) {
      observers_.instruments.timeline.stop();
    } else if (!coordinator_) {  // the root has begun its own before it put this into the log
      if (Status status = begin_timeline(command.path, command.mark_cycles); !status.is_ok()) {
        log(LogLevel::kError,
            "No timeline of rank " + std::to_string(topology_.rank) + ": " + status.text());
      }
    }
  }
  if (command.rank == topology_.rank) observers_.timeline.done(command.number, entry.error);
}

void Negotiator::decide_timeline() {
  for (TimelineCommand& command : std::exchange(timeline_commands_, {})) {
    std::string error;
    if (!command.path.empty()) error = begin_timeline(command.path, command.mark_cycles).text();
    std::vector<LogEntry> entries;
    entries.emplace_back(TimelineEntry{std::move(command), std::move(error)});
    append(std::move(entries));
  }
}

Status Negotiator::begin_timeline(const std::string& path, bool mark_cycles) {
  if (topology_.rank != 0 && !config_.timeline_all_ranks) return Status::ok();
  TimelineOptions options;
  options.path = timeline_path_of(path, topology_.rank);
  options.mark_cycles = mark_cycles && topology_.rank == 0;
  options.max_bytes = static_cast<std::uint64_t>(config_.timeline_max_mb) << 20;
  options.identity = {
      topology_.rank, topology_.size, {}, clock_offset_micros_, clock_error_micros_};
  for (Rank rank = 0; rank < topology_.size; ++rank) {
    options.identity.hosts.push_back(topology_.host_name_of(rank));
  }
  return observers_.instruments.timeline.start(std::move(options));
}

void Negotiator::set_clock(double offset_micros, double error_micros) {
  clock_offset_micros_ = offset_micros;
  clock_error_micros_ = error_micros;
}

void Negotiator::trace(const Request& request, decltype(TensorTrace::what) what) {
  if (!observers_.instruments.timeline.active()) return;
  observers_.instruments.timeline.record(
      TensorTrace{now_, request.process_set, request.name, request.kind, std::move(what)});
}

void Negotiator::trace_announcements(const UpMessage& message, TimePoint now) {
  if (!observers_.instruments.timeline.active()) return;
  for (const Announcement& announcement : message.announcements) {
    std::shared_ptr<const Request> known;
    if (const auto* id = std::get_if<CacheId>(&announcement.what)) {
      known = replica_.request(*id);
      if (known == nullptr) continue;
    }
    const Request& request = known ? *known : std::get<Request>(announcement.what);
    for (const RankRange& range : announcement.ranks.ranges()) {
      observers_.instruments.timeline.record(TensorTrace{now, request.process_set, request.name,
                                                         request.kind,
                                                         TraceAnnounced{range.first, range.count}});
    }
  }
}

void Negotiator::count_step(const ExecuteEntry& entry,
                            const std::vector<std::shared_ptr<const Request>>& requests) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i]->cacheable) continue;
    if (!observers_.steps.executed(entry.items[i])) continue;
    if (coordinator_) coordinator_->stragglers().step(now_);
    if (observers_.instruments.timeline.active()) {
      observers_.instruments.timeline.record(StepTrace{now_, observers_.steps.steps()});
    }
  }
}

void Negotiator::set_parameters(std::int64_t fusion_threshold_bytes, double cycle_time_ms,
                                bool cache_enabled) {
  if (coordinator_) {
    coordinator_->set_parameters(fusion_threshold_bytes, cycle_time_ms, cache_enabled);
  }
}

std::map<Rank, double> Negotiator::straggler_seconds() const {
  const std::lock_guard lock(stragglers_mutex_);
  return straggler_seconds_;
}

void Negotiator::answer_inquiries(TimePoint now) {
  for (AnswerMessage& answer : observers_.dumps.progress(now)) {
    if (coordinator_) {
      inquiry_.receive(std::move(answer));
    } else {
      tree_.send_up(answer);
    }
  }
}

void Negotiator::fail_waiting(const Status& status) {
  for (const auto& operation : table_.all()) {
    if (!operation->executing) end(*operation, status);
  }
}

void Negotiator::spread_abort() {
  if (!abort_spread_) {
    abort_spread_ = true;
    const Status status = state_.status();
    tree_.send_everywhere(AbortMessage{state_.culprit(), status.text()});
    tree_.flush(false);
    log(LogLevel::kInfo, status.text());
    observers_.dumps.dump_now("abort", status.text());
    observers_.timeline.end(status);
    observers_.steps.end();
  }
  tree_.flush(false);  // each time: an edge may have been full
  inbox_.take();
  fail_waiting(state_.status());
}

void Negotiator::ring_put_off_bells() { tree_.ring_due(false); }

void Negotiator::say_goodbye() {
  observers_.dumps.finish(now_);
  tree_.send_everywhere(GoodbyeMessage{});
  tree_.flush(false);
}

void Negotiator::report_warnings(TimePoint now) {
  if (auto text = coordinator_->take_stall_warning(now)) {
    observers_.instruments.metrics.stalls.add();
    InquiryMessage inquiry =
        inquiry_.begin(std::move(*text), coordinator_->stalled_operations(now), now);
    tree_.send_down(inquiry);
    observers_.dumps.answer(inquiry, now);
    answer_inquiries(now);
  }
  if (inquiry_.is_active()) {
    if (const auto text = inquiry_.take(now, topology_)) log(LogLevel::kWarning, *text);
  }
  if (const auto text = coordinator_->take_warning()) log(LogLevel::kWarning, *text);
  Stragglers& stragglers = coordinator_->stragglers();
  if (stragglers.windows() == straggler_windows_) return;
  straggler_windows_ = stragglers.windows();
  while (const auto found = stragglers.take()) {
    log(LogLevel::kWarning, straggler_text(*found, topology_));
  }
  const std::lock_guard lock(stragglers_mutex_);
  straggler_seconds_ = stragglers.seconds();
}

std::optional<TimePoint> Negotiator::next_deadline() const {
  std::optional<TimePoint> next =
      coordinator_ ? coordinator_->next_deadline() : aggregator_->next_deadline();
  const auto consider = [&next](std::optional<TimePoint> other) {
    if (other && (!next || *other < *next)) next = other;
  };
  if (observers_.dumps.has_work()) consider(observers_.dumps.deadline());
  if (inquiry_.is_active()) consider(inquiry_.deadline());
  consider(tree_.next_bell());
  return next;
}

std::map<ProcessSetId, std::vector<Rank>> Negotiator::process_sets() const {
  const std::lock_guard lock(sets_mutex_);
  std::map<ProcessSetId, std::vector<Rank>> sets;
  for (const auto& [id, members] : sets_) sets[id] = *members;
  return sets;
}

}  // namespace hvd
