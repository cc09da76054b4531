// Coordinator: operations go from announced to complete to ready to the log.
#include "engine/coordinator.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "engine/agreement.h"
#include "engine/cache_advice.h"
#include "engine/eviction_order.h"
#include "engine/fusion.h"
#include "engine/pending.h"
#include "engine/process_set_rules.h"
#include "engine/replica.h"
#include "engine/stall.h"

namespace hvd {

namespace {

std::chrono::nanoseconds cycle_time(const Config& config) {
  constexpr double kLongestMilliseconds = 3.6e6;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double, std::milli>(
          std::clamp(config.cycle_time_ms, 0.0, kLongestMilliseconds)));
}

// "Allreduce", as texts for users name an operation.
std::string title(Collective kind) {
  std::string text(name_of(kind));
  std::transform(text.begin() + 1, text.end(), text.begin() + 1, [](unsigned char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : static_cast<char>(c);
  });
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

// Operations that a joined rank takes part in with zeros, or need not take part in.
bool works_with_join(Collective kind) {
  return kind == Collective::kAllreduce || kind == Collective::kBarrier;
}

std::string no_join_text(Collective kind) {
  std::string text = title(kind) + " is not supported with Join at this time.";
  if (kind == Collective::kAllgather) {
    text += " Specify sparse_to_dense=True if using DistributedOptimizer";
  }
  return text;
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

struct Coordinator::State {
  struct Ready {
    Pending* pending;
    std::int32_t group;  // number within this flush; -1: none
  };

  State(const Config& config_in, Rank world_size_in)
      : config(config_in),
        world_size(world_size_in),
        everybody(RankSet::range(0, world_size_in)),
        cycle(cycle_time(config_in)),
        replica(world_size_in),
        advice(config_in.cache_capacity),
        stall(config_in) {}

  // Announcements
  void receive(const Announcement& a, TimePoint now);
  void receive(const UrgentMark& mark);
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
  void make_ready(const std::vector<Pending*>& members, bool as_group, TimePoint now);
  void fail(const std::vector<Pending*>& members, const std::string& text);
  std::vector<Pending*> all_pending(const std::vector<Stage>& stages);
  void drop(Pending& pending);

  // The log
  bool flush_due(TimePoint now) const;
  void flush();
  void execute(const std::vector<Pending*>& members);
  std::optional<ResponseItem> cached_item(Pending& pending, EvictEntry& evicted);
  bool make_room(EvictEntry& evicted, std::size_t assigned);
  void append(LogEntry entry);
  void end(std::string text);

  // Stall
  std::optional<TimePoint> shutdown_due() const;
  std::vector<StalledTensor> stalled(TimePoint now) const;

  Config config;
  Rank world_size;
  RankSet everybody;
  std::chrono::nanoseconds cycle;
  Replica replica;
  EvictionOrder eviction_order;
  CacheAdvice advice;
  StallClock stall;
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

Coordinator::Coordinator(const Config& config, Rank world_size)
    : state_(std::make_unique<State>(config, world_size)) {}

Coordinator::~Coordinator() = default;

void Coordinator::receive(const UpMessage& message, TimePoint now) {
  State& s = *state_;
  if (s.ended) return;
  for (const Announcement& a : message.announcements) s.receive(a, now);
  for (const UrgentMark& mark : message.urgent) s.receive(mark);
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
  while (!incomplete.empty() && incomplete.front().since + s.stall.warning_time() <= now) {
    s.pending.move(incomplete.front(), Stage::kReported);
  }
  s.stall.reported(now);
  return s.stall.warning_text(s.stalled(now));
}

std::optional<std::string> Coordinator::take_warning() { return state_->advice.take(); }

// --- Announcements -------------------------------------------------------------------------------

void Coordinator::State::receive(const Announcement& a, TimePoint now) {
  std::shared_ptr<const Request> shared;
  if (const auto* id = std::get_if<CacheId>(&a.what)) {
    shared = replica.request(*id);
    if (shared == nullptr) return;  // evicted meanwhile: these ranks will announce it in full
  }
  const Request& request = shared ? *shared : std::get<Request>(a.what);
  if (request.kind == Collective::kJoin) return receive_join(a.ranks, now);
  if (request.kind == Collective::kAddProcessSet && !std::is_sorted(request.ranks.begin(), request.ranks.end())) {
    Request sorted = request;  // the order of ranks in a set means nothing
    std::sort(sorted.ranks.begin(), sorted.ranks.end());
    return receive({std::move(sorted), a.ranks, a.urgent}, now);
  }
  const NameView name = name_of(request);
  const RankSet* members = replica.member_ranges(request.process_set);
  if (members == nullptr) {
    const bool existed = request.process_set > 0 && request.process_set <= highest_set;
    return reject(name, existed ? "Process set has been removed"
                                : title(request.kind) + ": Process set provided does not exist, or "
                                                        "has not been registered.");
  }
  if (a.ranks.empty() || !members->contains_all(a.ranks)) {
    RankSet strangers = a.ranks;
    strangers.remove(*members);
    return reject(name, title(request.kind) + ": " + ranks_text(strangers) +
                            " is not a member of the provided process set.");
  }
  Pending* known = pending.find(name);
  if (known != nullptr && known->announced.intersects(a.ranks)) {
    return reject(name, duplicate_text(name, a.ranks.intersection(known->announced)));
  }
  Pending& p = known ? *known : open(request, shared, now);
  p.add(known ? request : p.request(), std::move(shared), a.ranks);
  p.urgent = p.urgent || a.urgent;
  if (is_complete(p, *members)) complete(p, now);
}

void Coordinator::State::receive(const UrgentMark& mark) {
  Pending* p = pending.find({mark.process_set, mark.name});
  if (p == nullptr) return;  // executed meanwhile
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
  if (Pending* p = pending.find(name)) return fail({p}, text);
  append(FailEntry{name.process_set, {std::string(name.name)}, std::move(text)});
}

// --- Completion ----------------------------------------------------------------------------------

void Coordinator::State::complete(Pending& p, TimePoint now) {
  p.failure = refusal(p);
  const Collective kind = p.request().kind;
  const bool changes_sets =
      kind == Collective::kAddProcessSet || kind == Collective::kRemoveProcessSet;
  const bool grouped = std::any_of(p.variants.begin(), p.variants.end(),
                                   [this](const Variant& v) { return is_grouped(*v.request); });
  if (grouped) {
    complete_in_group(p, now);
  } else if (p.failure) {
    fail({&p}, *p.failure);
  } else if (changes_sets) {
    change_process_sets(p);
  } else {
    make_ready({&p}, false, now);
  }
}

std::optional<std::string> Coordinator::State::refusal(const Pending& p) const {
  if (p.variants.size() == 1) {
    if (auto text = find_disagreement(p.variants)) return text;
  } else {
    std::vector<Variant> by_rank = p.variants;
    std::sort(by_rank.begin(), by_rank.end(), [](const Variant& a, const Variant& b) {
      return a.ranks.first() < b.ranks.first();
    });
    if (auto text = find_disagreement(by_rank)) return text;
  }
  const Request& request = p.request();
  const bool all_announced =
      request.process_set != kGlobalProcessSet || p.announced.contains_all(everybody);
  if (all_announced || works_with_join(request.kind)) return std::nullopt;
  return no_join_text(request.kind);
}

bool Coordinator::State::is_grouped(const Request& request) const {
  return !request.group.empty() && (request.group_size > 1 || config.disable_group_fusion);
}

void Coordinator::State::complete_in_group(Pending& p, TimePoint now) {
  const Request& request = p.request();
  const bool same_group =
      std::all_of(p.variants.begin(), p.variants.end(), [&](const Variant& v) {
        return v.request->group == request.group && v.request->group_size == request.group_size;
      });
  if (!same_group) {  // no telling what would make these groups complete: all known members fail
    std::vector<Pending*> members;
    for (Pending* other : all_pending({Stage::kIncomplete, Stage::kReported, Stage::kGrouped})) {
      const bool related = std::any_of(
          p.variants.begin(), p.variants.end(),
          [other](const Variant& v) { return other->in_group_of(*v.request); });
      if (related || other == &p) members.push_back(other);
    }
    return fail(members, std::string(*p.failure));
  }
  pending.move(p, Stage::kGrouped);
  const auto group = groups.try_emplace({request.process_set, request.group}).first;
  group->second.push_back(&p);
  if (group->second.size() < static_cast<std::size_t>(std::max(1, request.group_size))) return;
  const std::vector<Pending*> members = std::move(group->second);
  groups.erase(group);
  const auto failed = std::find_if(members.begin(), members.end(),
                                   [](const Pending* m) { return m->failure.has_value(); });
  if (failed == members.end()) {
    make_ready(members, true, now);
  } else {
    fail(members, std::string(*(*failed)->failure));
  }
}

void Coordinator::State::change_process_sets(Pending& p) {
  const Request request = p.request();
  drop(p);
  if (request.kind == Collective::kAddProcessSet) {
    auto decision = decide_addition(request, replica.process_sets(), world_size);
    if (auto* entry = std::get_if<AddProcessSetEntry>(&decision)) {
      highest_set = std::max(highest_set, entry->id);
      return append(std::move(*entry));
    }
    return append(FailEntry{request.process_set, {request.name}, std::get<1>(decision)});
  }
  const auto decision = decide_removal(request, replica.process_sets());
  if (const auto* entry = std::get_if<RemoveProcessSetEntry>(&decision)) {
    return remove_process_set(*entry);
  }
  append(FailEntry{request.process_set, {request.name}, std::get<1>(decision)});
}

void Coordinator::State::remove_process_set(const RemoveProcessSetEntry& entry) {
  flush();  // what is complete still runs
  std::vector<Pending*> members;
  for (Pending* p : all_pending({Stage::kIncomplete, Stage::kReported, Stage::kGrouped})) {
    if (p->name().process_set == entry.id) members.push_back(p);
  }
  if (!members.empty()) fail(members, "Process set has been removed");
  append(entry);
}

void Coordinator::State::make_ready(const std::vector<Pending*>& members, bool as_group,
                                    TimePoint now) {
  if (ready.empty()) ready_since = now;
  const std::int32_t group = as_group ? ready_groups++ : -1;
  flush_now = flush_now || as_group;
  for (Pending* p : members) {
    const Request& request = p->request();
    pending.move(*p, Stage::kReady);
    ready.push_back({p, group});
    const auto set_size = static_cast<std::int64_t>(replica.members(request.process_set)->size());
    if (__builtin_add_overflow(ready_bytes, fusion_bytes(request, set_size), &ready_bytes)) {
      ready_bytes = config.fusion_threshold_bytes;
    }
    flush_now = flush_now || p->urgent || !is_fusible(request.kind);
  }
  flush_now = flush_now || ready_bytes >= config.fusion_threshold_bytes;
}

// All of one process set. Also takes them out of the lists that point to them.
void Coordinator::State::fail(const std::vector<Pending*>& members, const std::string& text) {
  FailEntry entry{members.front()->name().process_set, {}, text};
  for (Pending* p : members) {
    entry.names.emplace_back(p->name().name);
    if (p->stage == Stage::kReady) std::erase_if(ready, [p](const Ready& r) { return r.pending == p; });
    if (p->stage != Stage::kGrouped) continue;
    const NameView group{p->request().process_set, p->request().group};
    const auto it = groups.find(group);
    if (it == groups.end()) continue;
    std::vector<Pending*> rest = std::move(it->second);
    groups.erase(it);  // its key may look into `p`
    std::erase(rest, p);
    if (rest.empty()) continue;
    const Request& first = rest.front()->request();
    groups.emplace(NameView{first.process_set, first.group}, std::move(rest));
  }
  for (Pending* p : members) drop(*p);
  append(std::move(entry));
}

std::vector<Pending*> Coordinator::State::all_pending(const std::vector<Stage>& stages) {
  std::vector<Pending*> all;
  for (const Stage stage : stages) {
    for (Pending& p : pending.at(stage)) all.push_back(&p);
  }
  return all;
}

void Coordinator::State::drop(Pending& p) {
  if (p.cached && replica.request(*p.cached)) eviction_order.release(*p.cached);
  pending.erase(p);
}

// --- The log -------------------------------------------------------------------------------------

void Coordinator::State::append(LogEntry entry) {
  replica.apply(entry);
  out.push_back(std::move(entry));
}

void Coordinator::State::end(std::string text) {
  flush();
  append(ShutdownEntry{std::move(text)});
  ended = true;
}

bool Coordinator::State::flush_due(TimePoint now) const {
  return !ready.empty() && (flush_now || now >= ready_since + cycle);
}

void Coordinator::State::flush() {
  std::vector<FusionItem> items;
  items.reserve(ready.size());
  for (const Ready& r : ready) {
    const Request& request = r.pending->request();
    const auto set_size = static_cast<std::int64_t>(replica.members(request.process_set)->size());
    items.push_back({&request, fusion_bytes(request, set_size), r.group});
  }
  const auto responses = plan_fusion(
      items, {config.fusion_threshold_bytes, config.disable_group_fusion});
  std::vector<Pending*> members;
  for (const std::vector<std::size_t>& response : responses) {
    members.clear();
    for (const std::size_t index : response) members.push_back(ready[index].pending);
    execute(members);
  }
  ready.clear();
  ready_bytes = 0;
  ready_groups = 0;
  flush_now = false;
}

void Coordinator::State::execute(const std::vector<Pending*>& members) {
  ExecuteEntry entry;
  EvictEntry evicted;
  entry.items.resize(members.size());
  std::size_t assigned = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {  // first, so that room is not made of these
    if (auto item = cached_item(*members[i], evicted)) entry.items[i] = std::move(*item);
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    ResponseItem& item = entry.items[i];
    if (item.id) continue;
    item.request = members[i]->request();
    if (!members[i]->cacheable || !make_room(evicted, assigned)) continue;
    item.id = next_id++;
    ++assigned;
    advice.assigned(members[i]->name());
  }
  if (!evicted.ids.empty()) append(std::move(evicted));
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (entry.items[i].id) eviction_order.release(*entry.items[i].id);
    members[i]->cached.reset();
    pending.erase(*members[i]);
  }
  append(std::move(entry));
}

// The item for a tensor whose id stands for just this request. An id with another signature is void.
std::optional<ResponseItem> Coordinator::State::cached_item(Pending& p, EvictEntry& evicted) {
  if (!p.cached) return std::nullopt;
  const auto known = replica.request(*p.cached);
  if (known == nullptr) return std::nullopt;
  if (known.get() == &p.request() || same_signature(*known, p.request())) {
    return ResponseItem{p.cached, std::nullopt};
  }
  evicted.ids.push_back(*p.cached);
  return std::nullopt;
}

// Only ids that nobody has pending are in the order, so no rank that was heard loses its announcement.
bool Coordinator::State::make_room(EvictEntry& evicted, std::size_t assigned) {
  const auto capacity = static_cast<std::size_t>(std::max<std::int64_t>(0, config.cache_capacity));
  while (replica.cache_size() + assigned - evicted.ids.size() >= capacity) {
    const auto id = eviction_order.oldest();
    if (!id) return false;
    eviction_order.hold(*id);
    const auto request = replica.request(*id);
    if (request == nullptr) continue;  // went with its process set
    advice.evicted(name_of(*request));
    evicted.ids.push_back(*id);
  }
  return true;
}

// --- Stall ---------------------------------------------------------------------------------------

std::optional<TimePoint> Coordinator::State::shutdown_due() const {
  for (const Stage stage : {Stage::kReported, Stage::kIncomplete}) {
    const auto& list = pending.at(stage);
    if (!list.empty()) return stall.shutdown_due(list.front().since);
  }
  return std::nullopt;
}

std::vector<StalledTensor> Coordinator::State::stalled(TimePoint now) const {
  std::vector<StalledTensor> tensors;
  for (const Stage stage : {Stage::kReported, Stage::kIncomplete}) {
    for (const Pending& p : pending.at(stage)) {
      if (p.since + stall.warning_time() > now) break;
      RankSet missing = *replica.member_ranges(p.name().process_set);
      missing.remove(p.announced);
      if (p.name().process_set == kGlobalProcessSet) missing.remove(joined);
      tensors.push_back({p.name().name, std::move(missing), now - p.since});
    }
  }
  return tensors;
}

}  // namespace hvd
