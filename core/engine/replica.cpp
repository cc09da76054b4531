// Replica: applies the log to the table of process sets and to the response cache.
#include "engine/replica.h"

#include <numeric>
#include <utility>

#include "engine/agreement.h"

namespace hvd {

Replica::Replica(Rank world_size) {
  std::vector<Rank> everybody(static_cast<std::size_t>(world_size));
  std::iota(everybody.begin(), everybody.end(), Rank{0});
  sets_[kGlobalProcessSet] = std::move(everybody);
  ranges_[kGlobalProcessSet] = RankSet::range(0, world_size);
}

void Replica::apply(const LogEntry& entry) {
  if (const auto* execute = std::get_if<ExecuteEntry>(&entry)) {
    for (const ResponseItem& item : execute->items) {
      if (item.id && item.request) assign(*item.id, *item.request);
    }
  } else if (const auto* evicted = std::get_if<EvictEntry>(&entry)) {
    for (const CacheId id : evicted->ids) evict(id);
  } else if (const auto* added = std::get_if<AddProcessSetEntry>(&entry)) {
    sets_[added->id] = added->ranks;
    ranges_[added->id] = RankSet::of(added->ranks);
  } else if (const auto* removed = std::get_if<RemoveProcessSetEntry>(&entry)) {
    remove_set(removed->id);
  }
}

void Replica::assign(CacheId id, const Request& request) {
  evict(id);
  if (const auto old = find_name(hvd::name_of(request))) evict(*old);
  const auto& stored = by_id_[id] = std::make_shared<const Request>(request);
  by_name_.emplace(hvd::name_of(*stored), id);
}

void Replica::evict(CacheId id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  by_name_.erase(hvd::name_of(*it->second));
  by_id_.erase(it);
}

void Replica::remove_set(ProcessSetId id) {
  sets_.erase(id);
  ranges_.erase(id);
  for (auto it = by_name_.begin(); it != by_name_.end();) {
    if (it->first.process_set != id) {
      ++it;
      continue;
    }
    const CacheId cached = it->second;
    it = by_name_.erase(it);  // first: its key looks into the request
    by_id_.erase(cached);
  }
}

std::vector<std::shared_ptr<const Request>> Replica::resolve(const ExecuteEntry& entry) const {
  std::vector<std::shared_ptr<const Request>> requests;
  requests.reserve(entry.items.size());
  for (const ResponseItem& item : entry.items) {
    requests.push_back(item.id ? request(*item.id)
                               : std::make_shared<const Request>(*item.request));
  }
  return requests;
}

std::optional<CacheId> Replica::find(const Request& request) const {
  if (!request.cacheable) return std::nullopt;
  const auto it = by_name_.find(hvd::name_of(request));
  if (it == by_name_.end()) return std::nullopt;
  if (!same_signature(*by_id_.at(it->second), request)) return std::nullopt;
  return it->second;
}

std::optional<CacheId> Replica::find_name(const NameView& name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return std::nullopt;
  return it->second;
}

std::shared_ptr<const Request> Replica::request(CacheId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

const std::vector<Rank>* Replica::members(ProcessSetId id) const {
  const auto it = sets_.find(id);
  return it == sets_.end() ? nullptr : &it->second;
}

const RankSet* Replica::member_ranges(ProcessSetId id) const {
  const auto it = ranges_.find(id);
  return it == ranges_.end() ? nullptr : &it->second;
}

}  // namespace hvd
