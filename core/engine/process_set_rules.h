// Process-set rules: what adding or removing a process set leads to once all ranks have asked.
// Pure.
#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "wire/messages.h"

namespace hvd {

using ProcessSetTable = std::map<ProcessSetId, std::vector<Rank>>;

// The entry to append, or why the request is refused. `request.ranks` in any order; the new set
// gets the lowest id that is free.
std::variant<AddProcessSetEntry, std::string> decide_addition(const Request& request,
                                                              const ProcessSetTable& sets,
                                                              Rank world_size);
std::variant<RemoveProcessSetEntry, std::string> decide_removal(const Request& request,
                                                                const ProcessSetTable& sets);

}  // namespace hvd
