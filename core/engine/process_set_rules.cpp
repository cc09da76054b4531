// Process-set rules: validity, duplicates, and the choice of ids.
#include "engine/process_set_rules.h"

#include <algorithm>

namespace hvd {

namespace {

std::string list_of(const std::vector<Rank>& ranks) {
  return to_string(Shape(ranks.begin(), ranks.end()));
}

}  // namespace

std::variant<AddProcessSetEntry, std::string> decide_addition(const Request& request,
                                                              const ProcessSetTable& sets,
                                                              Rank world_size) {
  std::vector<Rank> ranks = request.ranks;
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty()) return "Attempted to add a process set without ranks.";
  if (ranks.front() < 0 || ranks.back() >= world_size) {
    return "Attempted to add a process set with invalid ranks: " + list_of(ranks) +
           "; ranks must be between 0 and " + std::to_string(world_size - 1) + ".";
  }
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return "Attempted to add a process set that contains a rank twice: " + list_of(ranks) + ".";
  }
  ProcessSetId free_id = 0;
  for (const auto& [id, members] : sets) {
    if (members == ranks) {
      return "Attempted to add a duplicate process set: " + list_of(ranks) + " is process set " +
             std::to_string(id) + " already.";
    }
    if (id == free_id) ++free_id;
  }
  return AddProcessSetEntry{request.name, free_id, std::move(ranks)};
}

std::variant<RemoveProcessSetEntry, std::string> decide_removal(const Request& request,
                                                                const ProcessSetTable& sets) {
  if (request.target_set == kGlobalProcessSet) {
    return "Attempted to remove the global process set.";
  }
  if (!sets.contains(request.target_set)) {
    return "Attempted to remove process set " + std::to_string(request.target_set) +
           ", which does not exist.";
  }
  return RemoveProcessSetEntry{request.name, request.target_set};
}

}  // namespace hvd
