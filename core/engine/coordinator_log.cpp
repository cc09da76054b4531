// Coordinator: what is ready goes into the log, with the ids of the response cache; and what does
// not get ready for too long.
#include <algorithm>
#include <utility>

#include "engine/agreement.h"
#include "engine/coordinator_state.h"
#include "engine/fusion.h"

namespace hvd {

void Coordinator::State::append(LogEntry entry) {
  replica.apply(entry);
  if (const auto* evicted = std::get_if<EvictEntry>(&entry)) {
    for (const CacheId id : evicted->ids) eviction_order.forget(id);
  }
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
  std::vector<Pending*> members;
  for (const std::vector<std::size_t>& response : plan()) {
    members.clear();
    for (const std::size_t index : response) members.push_back(ready[index].pending);
    execute(members);
  }
  ready.clear();
  ready_bytes = 0;
  ready_groups = 0;
  flush_now = false;
  if (!cache_enabled) give_up_cache();
}

std::vector<std::vector<std::size_t>> Coordinator::State::plan() const {
  std::vector<FusionItem> items;
  items.reserve(ready.size());
  for (const Ready& r : ready) {
    const Request& request = r.pending->request();
    const auto set_size = static_cast<std::int64_t>(replica.members(request.process_set)->size());
    items.push_back({&request, fusion_bytes(request, set_size), r.group});
  }
  return plan_fusion(items, {config.fusion_threshold_bytes, config.disable_group_fusion});
}

void Coordinator::State::execute(Members members) {
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

// The item for a tensor whose id stands for just this request. An id with another signature is
// void.
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

// Only ids that nobody has pending are in the order, so no rank that was heard loses its
// announcement.
bool Coordinator::State::make_room(EvictEntry& evicted, std::size_t assigned) {
  if (!cache_enabled) return false;
  const auto capacity = static_cast<std::size_t>(std::max<std::int64_t>(0, config.cache_capacity));
  while (replica.cache_size() + assigned - evicted.ids.size() >= capacity) {
    const auto id = eviction_order.oldest();
    if (!id) return false;
    eviction_order.hold(*id);
    const auto request = replica.request(*id);
    if (request == nullptr) {  // went with its process set
      eviction_order.forget(*id);
      continue;
    }
    advice.evicted(name_of(*request));
    evicted.ids.push_back(*id);
  }
  return true;
}

std::optional<TimePoint> Coordinator::State::shutdown_due() const {
  for (const Stage stage : {Stage::kReported, Stage::kIncomplete}) {
    const auto& list = pending.at(stage);
    if (!list.empty()) return stall.shutdown_due(list.front().since);
  }
  return std::nullopt;
}

std::vector<const Pending*> Coordinator::State::overdue(TimePoint now) const {
  std::vector<const Pending*> found;
  for (const Stage stage : {Stage::kReported, Stage::kIncomplete}) {
    for (const Pending& p : pending.at(stage)) {
      if (p.since + stall.worth_reporting() > now) break;
      found.push_back(&p);
    }
  }
  return found;
}

RankSet Coordinator::State::missing_from(const Pending& p) const {
  RankSet missing = *replica.member_ranges(p.name().process_set);
  missing.remove(p.announced);
  if (p.name().process_set == kGlobalProcessSet) missing.remove(joined);
  return missing;
}

std::vector<StalledTensor> Coordinator::State::stalled(TimePoint now) const {
  std::vector<StalledTensor> tensors;
  for (const Pending* p : overdue(now)) {
    tensors.push_back({p->name().name, missing_from(*p), now - p->since});
  }
  return tensors;
}

// Ids that somebody has pending stay: their announcements were made by them.
void Coordinator::State::give_up_cache() {
  EvictEntry evicted;
  while (const auto id = eviction_order.oldest()) {
    eviction_order.hold(*id);
    evicted.ids.push_back(*id);
  }
  if (!evicted.ids.empty()) append(std::move(evicted));
}

}  // namespace hvd
