// Coordinator: operations that every member has announced. They agree or fail, wait for the rest of
// their group, change the table of process sets, or become ready for the next flush.
#include <algorithm>
#include <utility>

#include "engine/agreement.h"
#include "engine/coordinator_state.h"
#include "engine/fusion.h"
#include "engine/process_set_rules.h"

namespace hvd {

namespace {

// Operations that a joined rank takes part in with zeros, or need not take part in.
bool works_with_join(Collective kind) {
  return kind == Collective::kAllreduce || kind == Collective::kBarrier;
}

std::string no_join_text(Collective kind) {
  std::string text = title_of(kind) + " is not supported with Join at this time.";
  if (kind == Collective::kAllgather) {
    text += " Specify sparse_to_dense=True if using DistributedOptimizer";
  }
  return text;
}

}  // namespace

void Coordinator::State::complete(Pending& p, TimePoint now) {
  p.failure = refusal(p);
  const Collective kind = p.request().kind;
  const bool changes_sets =
      kind == Collective::kAddProcessSet || kind == Collective::kRemoveProcessSet;
  const bool grouped = std::any_of(p.variants.begin(), p.variants.end(),
                                   [this](const Variant& v) { return is_grouped(*v.request); });
  Pending* const self = &p;
  if (grouped) {
    complete_in_group(p, now);
  } else if (p.failure) {
    fail(Members(&self, 1), *p.failure);
  } else if (changes_sets) {
    change_process_sets(p);
  } else {
    make_ready(Members(&self, 1), false, now);
  }
}

std::optional<std::string> Coordinator::State::refusal(const Pending& p) const {
  if (p.variants.size() == 1) {
    if (auto text = find_disagreement(p.variants)) return text;
  } else {
    std::vector<Variant> by_rank = p.variants;
    std::sort(by_rank.begin(), by_rank.end(),
              [](const Variant& a, const Variant& b) { return a.ranks.first() < b.ranks.first(); });
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
  const bool same_group = std::all_of(p.variants.begin(), p.variants.end(), [&](const Variant& v) {
    return v.request->group == request.group && v.request->group_size == request.group_size;
  });
  if (!same_group) {  // no telling what would make these groups complete: all known members fail
    std::vector<Pending*> members;
    for (Pending* other : all_pending({Stage::kIncomplete, Stage::kReported, Stage::kGrouped})) {
      const bool related =
          std::any_of(p.variants.begin(), p.variants.end(),
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

void Coordinator::State::make_ready(Members members, bool as_group, TimePoint now) {
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
void Coordinator::State::fail(Members members, const std::string& text) {
  FailEntry entry{members.front()->name().process_set, {}, text};
  for (Pending* p : members) {
    entry.names.emplace_back(p->name().name);
    if (p->stage == Stage::kReady)
      std::erase_if(ready, [p](const Ready& r) { return r.pending == p; });
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
  if (p.cached) eviction_order.release(*p.cached);
  pending.erase(p);
}

}  // namespace hvd
