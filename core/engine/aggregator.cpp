// Aggregator: announcements of one operation are held until all members below have made it.
#include "engine/aggregator.h"

#include <algorithm>
#include <list>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/agreement.h"
#include "engine/name_view.h"

namespace hvd {

namespace {

using TimePoint = std::chrono::steady_clock::time_point;

constexpr std::size_t kRememberedMarks = 4096;

// Ranks below that want the same. An id and a full request stay apart even if they mean the same:
// an eviction voids the one and not the other.
struct Part {
  std::optional<CacheId> id;
  std::shared_ptr<const Request> request;
  RankSet unsent;
  RankSet sent;

  bool matches(const Announcement& a) const {
    if (const auto* other = std::get_if<CacheId>(&a.what)) return id == *other;
    return !id && same_signature(*request, std::get<Request>(a.what));
  }
};

// One operation that is not complete below.
struct Held {
  std::shared_ptr<const Request> owner_of_name;
  std::vector<Part> parts;
  RankSet announced;
  bool urgent = false;
  bool waiting = true;  // in `waiting`, with something unsent; else in `passed`
  TimePoint since;      // of the oldest that is unsent
};

struct NameHash : NameViewHash {
  using is_transparent = void;
  using NameViewHash::operator();
  std::size_t operator()(const UrgentMark& mark) const noexcept {
    return (*this)(NameView{mark.process_set, mark.name});
  }
};

struct NameEqual {
  using is_transparent = void;
  static NameView view(const UrgentMark& mark) { return {mark.process_set, mark.name}; }
  static NameView view(const NameView& name) { return name; }
  template <typename A, typename B>
  bool operator()(const A& a, const B& b) const {
    return view(a) == view(b);
  }
};

}  // namespace

struct Aggregator::State {
  using Position = std::list<Held>::iterator;

  RankSet subtree;
  std::chrono::nanoseconds hold;
  std::list<Held> waiting;  // in the order of `since`
  std::list<Held> passed;   // all sent; more ranks will come
  std::unordered_map<NameView, Position, NameViewHash> by_name;
  std::unordered_set<UrgentMark, NameHash, NameEqual> marked;  // marks passed on: one is enough
  std::unordered_map<ProcessSetId, RankSet> members_below;
  RankSet joined;
  UpMessage ready;

  void receive(const Announcement& a, const Replica& replica, TimePoint now);
  void receive_join(const Announcement& a, const Replica& replica);
  void receive(const UrgentMark& mark);
  void apply(const ExecuteEntry& entry, const Replica& replica);
  void apply(const EvictEntry& entry);
  void forget_set(ProcessSetId set);

  const RankSet* expected(ProcessSetId set, const Replica& replica);
  bool is_complete(const Held& held, const RankSet& expected_ranks) const;
  Position hold_new(std::shared_ptr<const Request> request, TimePoint now);
  void add(Position held, const Announcement& a, std::shared_ptr<const Request> request,
           TimePoint now);
  void pass_on(Held& held);
  void park(Position held);
  void forget(Position held);
  void forget(const NameView& name);
};

Aggregator::Aggregator(RankSet subtree, std::chrono::nanoseconds hold)
    : state_(std::make_unique<State>()) {
  state_->subtree = std::move(subtree);
  state_->hold = hold;
}

Aggregator::~Aggregator() = default;
Aggregator::Aggregator(Aggregator&&) noexcept = default;
Aggregator& Aggregator::operator=(Aggregator&&) noexcept = default;

void Aggregator::receive(const UpMessage& message, const Replica& replica, TimePoint now) {
  State& s = *state_;
  if (s.subtree.size() == 1) {
    auto& out = s.ready.announcements;
    out.insert(out.end(), message.announcements.begin(), message.announcements.end());
    s.ready.urgent.insert(s.ready.urgent.end(), message.urgent.begin(), message.urgent.end());
  } else {
    for (const Announcement& a : message.announcements) s.receive(a, replica, now);
    for (const UrgentMark& mark : message.urgent) s.receive(mark);
  }
  s.ready.shutdown = s.ready.shutdown || message.shutdown;
  s.ready.timeline.insert(s.ready.timeline.end(), message.timeline.begin(), message.timeline.end());
}

UpMessage Aggregator::take(TimePoint now) {
  State& s = *state_;
  while (!s.waiting.empty() && s.waiting.front().since + s.hold <= now) {
    s.pass_on(s.waiting.front());
    s.park(s.waiting.begin());
  }
  return std::exchange(s.ready, {});
}

std::optional<TimePoint> Aggregator::next_deadline() const {
  if (state_->waiting.empty()) return std::nullopt;
  return state_->waiting.front().since + state_->hold;
}

void Aggregator::apply(const LogEntry& entry, const Replica& replica) {
  State& s = *state_;
  if (const auto* execute = std::get_if<ExecuteEntry>(&entry)) {
    s.apply(*execute, replica);
  } else if (const auto* failed = std::get_if<FailEntry>(&entry)) {
    for (const std::string& name : failed->names) s.forget({failed->process_set, name});
  } else if (const auto* evicted = std::get_if<EvictEntry>(&entry)) {
    s.apply(*evicted);
  } else if (const auto* added = std::get_if<AddProcessSetEntry>(&entry)) {
    s.members_below.erase(added->id);
    s.forget({kGlobalProcessSet, added->name});
  } else if (const auto* removed = std::get_if<RemoveProcessSetEntry>(&entry)) {
    s.forget_set(removed->id);
    s.forget({kGlobalProcessSet, removed->name});
  } else if (std::holds_alternative<JoinedEntry>(entry)) {
    s.joined.clear();
  } else if (std::holds_alternative<ShutdownEntry>(entry)) {
    s.by_name.clear();
    s.waiting.clear();
    s.passed.clear();
  }
}

void Aggregator::State::receive(const Announcement& a, const Replica& replica, TimePoint now) {
  std::shared_ptr<const Request> request;
  if (const auto* id = std::get_if<CacheId>(&a.what)) {
    request = replica.request(*id);
    if (request == nullptr) {  // evicted meanwhile: the rank announces again, the root ignores this
      ready.announcements.push_back(a);
      return;
    }
  }
  const Request& wanted = request ? *request : std::get<Request>(a.what);
  if (wanted.kind == Collective::kJoin) return receive_join(a, replica);
  const RankSet* expected_ranks = expected(wanted.process_set, replica);
  if (expected_ranks == nullptr) {
    ready.announcements.push_back(a);
    return;
  }
  const auto it = by_name.find(name_of(wanted));
  if (it != by_name.end()) {
    add(it->second, a, std::move(request), now);
    if (!is_complete(*it->second, *expected_ranks)) return;
    pass_on(*it->second);
    forget(it->second);
    return;
  }
  if (!marked.empty()) {  // of an earlier operation of this name
    if (const auto mark = marked.find(name_of(wanted)); mark != marked.end()) marked.erase(mark);
  }
  RankSet covered = a.ranks;
  if (wanted.process_set == kGlobalProcessSet) covered.add(joined);
  if (covered.contains_all(*expected_ranks)) {
    ready.announcements.push_back(a);
    return;
  }
  if (!request) request = std::make_shared<const Request>(std::get<Request>(a.what));
  const Position held = hold_new(request, now);
  add(held, a, std::move(request), now);
}

// Whoever joins is not waited for any more; what it announced before goes first.
void Aggregator::State::receive_join(const Announcement& a, const Replica& replica) {
  joined.add(a.ranks);
  const RankSet* expected_ranks = expected(kGlobalProcessSet, replica);
  for (auto it = waiting.begin(); it != waiting.end();) {
    const Position held = it++;
    if (held->owner_of_name->process_set != kGlobalProcessSet) continue;
    const bool complete = is_complete(*held, *expected_ranks);
    if (!complete && !held->announced.intersects(a.ranks)) continue;
    pass_on(*held);
    complete ? forget(held) : park(held);
  }
  for (auto it = passed.begin(); it != passed.end();) {
    const Position held = it++;
    const bool global = held->owner_of_name->process_set == kGlobalProcessSet;
    if (global && is_complete(*held, *expected_ranks)) forget(held);
  }
  ready.announcements.push_back(a);
}

void Aggregator::State::receive(const UrgentMark& mark) {
  const auto it = by_name.find({mark.process_set, mark.name});
  if (it != by_name.end() && it->second->waiting) {
    it->second->urgent = true;
    return;
  }
  // A mark that comes after its operation was executed stays here; forgetting it costs little.
  if (marked.size() >= kRememberedMarks) marked.clear();
  if (marked.insert(mark).second) ready.urgent.push_back(mark);
}

// Below this rank an operation is over once the log executes it, whoever has announced it here.
void Aggregator::State::apply(const ExecuteEntry& entry, const Replica& replica) {
  for (const ResponseItem& item : entry.items) {
    if (by_name.empty() && marked.empty()) return;
    if (item.request) {
      forget(name_of(*item.request));
    } else if (const auto request = replica.request(*item.id)) {
      forget(name_of(*request));
    }
  }
}

void Aggregator::State::apply(const EvictEntry& entry) {
  const std::unordered_set<CacheId> ids(entry.ids.begin(), entry.ids.end());
  for (auto it = by_name.begin(); it != by_name.end();) {
    const Position held = (it++)->second;
    const std::size_t dropped = std::erase_if(
        held->parts, [&](const Part& part) { return part.id && ids.contains(*part.id); });
    if (dropped == 0) continue;
    held->announced.clear();
    bool unsent = false;
    for (const Part& part : held->parts) {
      held->announced.add(part.sent);
      held->announced.add(part.unsent);
      unsent = unsent || !part.unsent.empty();
    }
    if (held->parts.empty()) {
      forget(held);
    } else if (held->waiting && !unsent) {
      park(held);
    }
  }
}

void Aggregator::State::forget_set(ProcessSetId set) {
  members_below.erase(set);
  for (auto it = by_name.begin(); it != by_name.end();) {
    const Position held = (it++)->second;
    if (held->owner_of_name->process_set == set) forget(held);
  }
  std::erase_if(marked, [set](const UrgentMark& mark) { return mark.process_set == set; });
}

// Members of the set in this subtree, or nullptr when the set is not known.
const RankSet* Aggregator::State::expected(ProcessSetId set, const Replica& replica) {
  if (const auto it = members_below.find(set); it != members_below.end()) return &it->second;
  const RankSet* members = replica.member_ranges(set);
  if (members == nullptr) return nullptr;
  return &(members_below[set] = members->intersection(subtree));
}

bool Aggregator::State::is_complete(const Held& held, const RankSet& expected_ranks) const {
  if (held.owner_of_name->process_set != kGlobalProcessSet || joined.empty()) {
    return held.announced.contains_all(expected_ranks);
  }
  RankSet covered = held.announced;
  covered.add(joined);
  return covered.contains_all(expected_ranks);
}

Aggregator::State::Position Aggregator::State::hold_new(std::shared_ptr<const Request> request,
                                                        TimePoint now) {
  const Position held = waiting.emplace(waiting.end());
  held->owner_of_name = std::move(request);
  held->since = now;
  by_name.emplace(name_of(*held->owner_of_name), held);
  return held;
}

void Aggregator::State::add(Position held, const Announcement& a,
                            std::shared_ptr<const Request> request, TimePoint now) {
  auto part = std::find_if(held->parts.begin(), held->parts.end(),
                           [&](const Part& p) { return p.matches(a); });
  if (part == held->parts.end()) {
    Part added;
    if (const auto* id = std::get_if<CacheId>(&a.what)) added.id = *id;
    added.request =
        request ? std::move(request) : std::make_shared<const Request>(std::get<Request>(a.what));
    part = held->parts.insert(held->parts.end(), std::move(added));
  }
  part->unsent.add(a.ranks);
  held->announced.add(a.ranks);
  held->urgent = held->urgent || a.urgent;
  if (held->waiting) return;
  held->waiting = true;
  held->since = now;
  waiting.splice(waiting.end(), passed, held);
}

void Aggregator::State::pass_on(Held& held) {
  for (Part& part : held.parts) {
    if (part.unsent.empty()) continue;
    Announcement& a = ready.announcements.emplace_back();
    if (part.id) {
      a.what = *part.id;
    } else {
      a.what = *part.request;
    }
    a.urgent = held.urgent;
    part.sent.add(part.unsent);
    a.ranks = std::exchange(part.unsent, {});
  }
}

void Aggregator::State::park(Position held) {
  held->waiting = false;
  held->urgent = false;  // it has been said
  passed.splice(passed.end(), waiting, held);
}

void Aggregator::State::forget(Position held) {
  by_name.erase(name_of(*held->owner_of_name));
  (held->waiting ? waiting : passed).erase(held);
}

void Aggregator::State::forget(const NameView& name) {
  if (const auto it = by_name.find(name); it != by_name.end()) forget(it->second);
  if (const auto it = marked.find(name); it != marked.end()) marked.erase(it);
}

}  // namespace hvd
