// Movement of bytes among the ranks of one host, through the arena: the common part of allgather,
// broadcast and alltoall.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/segments.h"
#include "collectives/store_policy.h"
#include "transport/arena.h"

namespace hvd {

// What comes out of one member's stream on this rank: bytes [begin, begin + to.bytes) go to `to`.
struct Landing {
  std::size_t begin = 0;
  View to;
};

struct ExchangePlan {
  std::vector<std::size_t> stream_bytes;  // of every member, known to all alike; mine as announced
  std::vector<Landing> landings;          // for every member; mine is not used
};

// Called when all members' headers are here: fills in the plan, or says why there is none.
using MakePlan =
    std::function<Status(std::span<const std::vector<std::byte>> headers, ExchangePlan& plan)>;

// Every member sends a header, of a size equal on all, and then `stream`, which all others may
// read. What is mine already is not copied. `stores` decides how my slots are written, and learns
// from it.
Status host_exchange(ArenaTurn& turn, std::span<const std::byte> header, const View& stream,
                     StorePolicy& stores, const MakePlan& make_plan);

}  // namespace hvd
