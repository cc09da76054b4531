// Coordinator: its public face, and what an announcement leads to.
#include "engine/coordinator.h"

#include <algorithm>
#include <utility>

#include "engine/coordinator_state.h"

namespace hvd {

namespace {

constexpr std::chrono::milliseconds kPatientCycle{20};

std::chrono::nanoseconds cycle_time(const Config& config, bool patient) {
  constexpr double kLongestMilliseconds = 3.6e6;
  const auto wanted = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double, std::milli>(
          std::clamp(config.cycle_time_ms, 0.0, kLongestMilliseconds)));
  return patient ? std::max<std::chrono::nanoseconds>(wanted, kPatientCycle) : wanted;
}

std::string ranks_text(const RankSet& ranks) {
  return (ranks.size() == 1 ? "Rank " : "Ranks ") + to_string(ranks);
}

std::string duplicate_text(const NameView& name, const RankSet& ranks) {
  return "Requested to allreduce, allgather, or broadcast a tensor with the same name as another "
         "tensor that is currently being processed.  If you want to request another tensor, use a "
         "different tensor name.\n" +
         ranks_text(ranks) + " announced tensor '" + std::string(name.name) +
         "' again before it was executed.";
}

}  // namespace

std::string title_of(Collective kind) {
  std::string text(name_of(kind));
  std::transform(text.begin() + 1, text.end(), text.begin() + 1, [](unsigned char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : static_cast<char>(c);
  });
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

Coordinator::State::State(const Config& config_in, Rank world_size_in, bool patient_in)
    : config(config_in),
      world_size(world_size_in),
      everybody(RankSet::range(0, world_size_in)),
      patient(patient_in),
      cycle(cycle_time(config_in, patient_in)),
      replica(world_size_in),
      advice(config_in.cache_capacity),
      stall(config_in),
      stragglers(config_in.straggler_share) {}

Coordinator::Coordinator(const Config& config, Rank world_size, bool patient)
    : state_(std::make_unique<State>(config, world_size, patient)) {}

Coordinator::~Coordinator() = default;

void Coordinator::receive(const UpMessage& message, TimePoint now) {
  State& s = *state_;
  if (s.ended) return;
  for (const Announcement& a : message.announcements) s.receive(a, now);
  for (const UrgentMark& mark : message.urgent) s.receive(mark, now);
  s.shutdown_wanted = s.shutdown_wanted || message.shutdown;
}

std::vector<LogEntry> Coordinator::take_entries(TimePoint now) {
  State& s = *state_;
  if (!s.ended) {
    const auto due = s.shutdown_due();
    if (due && now >= *due) {
      s.end(s.stall.shutdown_text(s.stalled(now)));
    } else if (s.shutdown_wanted) {
      s.end("");
    } else if (s.flush_due(now)) {
      s.flush();
    }
  }
  return std::exchange(s.out, {});
}

std::optional<TimePoint> Coordinator::next_deadline() const {
  const State& s = *state_;
  if (!s.out.empty()) return TimePoint();
  if (s.ended) return std::nullopt;
  if (s.flush_now || s.shutdown_wanted) return TimePoint();
  std::optional<TimePoint> next = s.shutdown_due();
  const auto consider = [&next](std::optional<TimePoint> due) {
    if (due && (!next || *due < *next)) next = due;
  };
  if (!s.ready.empty()) consider(s.ready_since + s.cycle);
  const auto& incomplete = s.pending.at(Stage::kIncomplete);
  if (!incomplete.empty()) consider(s.stall.report_due(incomplete.front().since));
  return next;
}

std::optional<std::string> Coordinator::take_stall_warning(TimePoint now) {
  State& s = *state_;
  auto& incomplete = s.pending.at(Stage::kIncomplete);
  if (s.ended || incomplete.empty()) return std::nullopt;
  const auto due = s.stall.report_due(incomplete.front().since);
  if (!due || now < *due) return std::nullopt;
  while (!incomplete.empty() && incomplete.front().since + s.stall.worth_reporting() <= now) {
    s.pending.move(incomplete.front(), Stage::kReported);
  }
  s.stall.reported(now);
  return s.stall.warning_text(s.stalled(now));
}

std::vector<StalledOperation> Coordinator::stalled_operations(TimePoint now) const {
  std::vector<StalledOperation> operations;
  for (const Pending* p : state_->overdue(now)) {
    const Request& request = p->request();
    operations.push_back(
        {request.process_set, request.name, request.kind, p->announced, state_->missing_from(*p)});
  }
  return operations;
}

std::optional<std::string> Coordinator::take_warning() { return state_->advice.take(); }

Stragglers& Coordinator::stragglers() { return state_->stragglers; }

void Coordinator::set_parameters(std::int64_t fusion_threshold_bytes, double cycle_time_ms,
                                 bool cache_enabled) {
  State& s = *state_;
  s.config.fusion_threshold_bytes = fusion_threshold_bytes;
  s.config.cycle_time_ms = cycle_time_ms;
  s.cycle = cycle_time(s.config, s.patient);
  s.cache_enabled = cache_enabled;
}

// --- Announcements -------------------------------------------------------------------------------

void Coordinator::State::receive(const Announcement& a, TimePoint now) {
  std::shared_ptr<const Request> shared;
  if (const auto* id = std::get_if<CacheId>(&a.what)) {
    shared = replica.request(*id);
    if (shared == nullptr) return;  // evicted meanwhile: these ranks will announce it in full
  }
  const Request& request = shared ? *shared : std::get<Request>(a.what);
  if (request.kind == Collective::kJoin) return receive_join(a.ranks, now);
  if (request.kind == Collective::kAddProcessSet &&
      !std::is_sorted(request.ranks.begin(), request.ranks.end())) {
    Request sorted = request;  // the order of ranks in a set means nothing
    std::sort(sorted.ranks.begin(), sorted.ranks.end());
    return receive({std::move(sorted), a.ranks, a.urgent}, now);
  }
  const NameView name = name_of(request);
  const RankSet* members = replica.member_ranges(request.process_set);
  if (members == nullptr) {
    const bool existed = request.process_set > 0 && request.process_set <= highest_set;
    return reject(name, existed ? "Process set has been removed"
                                : title_of(request.kind) +
                                      ": Process set provided does not exist, or "
                                      "has not been registered.");
  }
  if (a.ranks.empty() || !members->contains_all(a.ranks)) {
    RankSet strangers = a.ranks;
    strangers.remove(*members);
    return reject(name, title_of(request.kind) + ": " + ranks_text(strangers) +
                            " is not a member of the provided process set.");
  }
  Pending* known = pending.find(name);
  if (known != nullptr && known->announced.intersects(a.ranks)) {
    return reject(name, duplicate_text(name, a.ranks.intersection(known->announced)));
  }
  Pending& p = known ? *known : open(request, shared, now);
  const TimePoint others_there = known ? p.latest : now;
  p.latest = now;
  p.add(known ? request : p.request(), std::move(shared), a.ranks);
  if (a.urgent && !p.urgent) p.urgent_since = now;
  p.urgent = p.urgent || a.urgent;
  if (!is_complete(p, *members)) return;
  if (request.process_set == kGlobalProcessSet && known) {
    const auto blocked_since = p.urgent ? std::optional(p.urgent_since) : std::nullopt;
    stragglers.completed(a.ranks, others_there, blocked_since, now);
  }
  complete(p, now);
}

void Coordinator::State::receive(const UrgentMark& mark, TimePoint now) {
  Pending* p = pending.find({mark.process_set, mark.name});
  if (p == nullptr) return;  // executed meanwhile
  if (!p->urgent) p->urgent_since = now;
  p->urgent = true;
  if (p->stage == Stage::kReady) flush_now = true;
}

void Coordinator::State::receive_join(const RankSet& ranks, TimePoint now) {
  RankSet fresh = ranks.intersection(everybody);
  fresh.remove(joined);
  if (fresh.empty()) return;
  joined.add(fresh);
  // Names, not pointers: completing one may fail others of its group.
  std::vector<std::string> complete_now;
  for (Pending* p : all_pending({Stage::kIncomplete, Stage::kReported})) {
    if (p->name().process_set != kGlobalProcessSet || !is_complete(*p, everybody)) continue;
    complete_now.emplace_back(p->name().name);
  }
  for (const std::string& name : complete_now) {
    Pending* p = pending.find({kGlobalProcessSet, name});
    if (p != nullptr && p->stage <= Stage::kReported) complete(*p, now);
  }
  if (joined != everybody) return;
  flush();  // ranks need to know that they have joined when they execute these
  const RankRange& last = fresh.ranges().back();
  append(JoinedEntry{last.first + last.count - 1});
  joined.clear();
}

Pending& Coordinator::State::open(const Request& request, std::shared_ptr<const Request> shared,
                                  TimePoint now) {
  if (shared == nullptr) shared = std::make_shared<const Request>(request);
  Pending& p = pending.insert(std::move(shared), now);
  p.cached = replica.find_name(p.name());
  if (p.cached) eviction_order.hold(*p.cached);
  return p;
}

// Joined ranks count as ready in the global set only.
bool Coordinator::State::is_complete(const Pending& p, const RankSet& members) const {
  if (p.announced.contains_all(members)) return true;
  if (joined.empty() || p.name().process_set != kGlobalProcessSet) return false;
  RankSet covered = p.announced;
  covered.add(joined);
  return covered.contains_all(members);
}

// An announcement that can't be: it fails, with what was announced of that name before.
void Coordinator::State::reject(const NameView& name, std::string text) {
  if (Pending* p = pending.find(name)) return fail(Members(&p, 1), text);
  append(FailEntry{name.process_set, {std::string(name.name)}, std::move(text)});
}

}  // namespace hvd
