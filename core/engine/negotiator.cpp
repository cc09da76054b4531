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

}  // namespace

Negotiator::Negotiator(const Config& config, const Topology& topology, RankSet subtree, Tree& tree,
                       Inbox& inbox, OperationTable& table, Executor& executor, JobState& state)
    : config_(config),
      topology_(topology),
      tree_(tree),
      inbox_(inbox),
      table_(table),
      executor_(executor),
      state_(state),
      replica_(topology.size) {
  if (tree.is_root()) {
    coordinator_.emplace(config, topology.size);
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
    append(coordinator_->take_entries(now));
    report_warnings(now);
    return;
  }
  UpMessage up = aggregator_->take(now);
  if (!up.empty()) tree_.send_up(std::move(up));
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
  } else {
    announcement.what = operation.request;
  }
}

void Negotiator::pass_up(UpMessage&& message, TimePoint now) {
  if (coordinator_) {
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
  }
}

void Negotiator::append(std::vector<LogEntry>&& entries) {
  if (entries.empty()) return;
  DownMessage message{std::move(entries)};
  tree_.send_down(message);
  // The children get it before this rank begins to execute: they may be what it waits for.
  tree_.flush(helping_ && state_.may_spin());
  for (const LogEntry& entry : message.entries) apply(entry);
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
      operation->executing = true;
      if (operation->handle->on_done) item.awaited = true;
      tensor = std::move(operation->tensor);
    } else {
      tensor.shape = request->shape;  // this rank has joined: zeros
    }
    item.bytes += bytes_of(*request);
    item.operations.push_back(std::move(operation));
  }
  executor_.queue(std::move(item), !helping_);
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
  state_.shut_down(entry.text.empty() ? kShutDownText : entry.text + " " + kShutDownText);
  fail_waiting(state_.status());
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
    log(LogLevel::kInfo, status.text());
  }
  tree_.flush(false);  // each time: an edge may have been full
  inbox_.take();
  fail_waiting(state_.status());
}

void Negotiator::ring_put_off_bells() { tree_.ring_due(false); }

void Negotiator::say_goodbye() {
  tree_.send_everywhere(GoodbyeMessage{});
  tree_.flush(false);
}

void Negotiator::report_warnings(TimePoint now) {
  if (const auto text = coordinator_->take_stall_warning(now)) log(LogLevel::kWarning, *text);
  if (const auto text = coordinator_->take_warning()) log(LogLevel::kWarning, *text);
}

std::optional<TimePoint> Negotiator::next_deadline() const {
  return coordinator_ ? coordinator_->next_deadline() : aggregator_->next_deadline();
}

std::map<ProcessSetId, std::vector<Rank>> Negotiator::process_sets() const {
  const std::lock_guard lock(sets_mutex_);
  std::map<ProcessSetId, std::vector<Rank>> sets;
  for (const auto& [id, members] : sets_) sets[id] = *members;
  return sets;
}

}  // namespace hvd
