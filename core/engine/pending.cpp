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
  variants.push_back(
      {shared ? std::move(shared) : std::make_shared<const Request>(request), ranks});
}

void Pending::clear() {
  variants.clear();
  announced.clear();
  cached.reset();
  failure.reset();
  urgent = false;
  cacheable = true;
  stage = Stage::kIncomplete;
}

Pending* PendingTable::find(const NameView& name) {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

Pending& PendingTable::insert(std::shared_ptr<const Request> request,
                              std::chrono::steady_clock::time_point since) {
  std::list<Pending>& incomplete = at(Stage::kIncomplete);
  if (spare_.empty()) {
    incomplete.emplace_back();
  } else {
    incomplete.splice(incomplete.end(), spare_, spare_.begin());
  }
  Pending& pending = incomplete.back();
  pending.self = std::prev(incomplete.end());
  pending.since = since;
  pending.variants.push_back({std::move(request), {}});
  if (spare_names_.empty()) {
    by_name_.emplace(pending.name(), &pending);
  } else {
    Names::node_type node = std::move(spare_names_.back());
    spare_names_.pop_back();
    node.key() = pending.name();
    node.mapped() = &pending;
    by_name_.insert(std::move(node));
  }
  return pending;
}

void PendingTable::move(Pending& pending, Stage stage) {
  std::list<Pending>& target = at(stage);
  target.splice(target.end(), at(pending.stage), pending.self);
  pending.stage = stage;
}

void PendingTable::erase(Pending& pending) {
  Names::node_type node = by_name_.extract(pending.name());
  std::list<Pending>& list = at(pending.stage);
  if (spare_.size() >= kSpares) {
    list.erase(pending.self);
    return;
  }
  spare_names_.push_back(std::move(node));
  pending.clear();
  spare_.splice(spare_.end(), list, pending.self);
}

}  // namespace hvd
