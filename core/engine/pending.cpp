// PendingTable: lists by stage, and a map from names into them.
#include "engine/pending.h"

#include <algorithm>
#include <utility>

namespace hvd {

bool Pending::in_group_of(const Request& other) const {
  return std::any_of(variants.begin(), variants.end(), [&](const Variant& v) {
    return !v.request->group.empty() && v.request->group == other.group &&
           v.request->process_set == other.process_set;
  });
}

void Pending::add(const Request& request, std::shared_ptr<const Request> shared,
                  const RankSet& ranks) {
  announced.add(ranks);
  cacheable = cacheable && request.cacheable;
  for (Variant& variant : variants) {
    if (variant.request.get() == &request || same_signature(*variant.request, request)) {
      variant.ranks.add(ranks);
      return;
    }
  }
  variants.push_back({shared ? std::move(shared) : std::make_shared<const Request>(request), ranks});
}

Pending* PendingTable::find(const NameView& name) {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

Pending& PendingTable::insert(std::shared_ptr<const Request> request,
                              std::chrono::steady_clock::time_point since) {
  std::list<Pending>& incomplete = at(Stage::kIncomplete);
  Pending& pending = incomplete.emplace_back();
  pending.self = std::prev(incomplete.end());
  pending.since = since;
  pending.variants.push_back({std::move(request), {}});
  by_name_.emplace(pending.name(), &pending);
  return pending;
}

void PendingTable::move(Pending& pending, Stage stage) {
  std::list<Pending>& target = at(stage);
  target.splice(target.end(), at(pending.stage), pending.self);
  pending.stage = stage;
}

void PendingTable::erase(Pending& pending) {
  by_name_.erase(pending.name());
  at(pending.stage).erase(pending.self);
}

}  // namespace hvd
