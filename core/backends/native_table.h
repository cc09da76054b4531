// The algorithm table: which algorithm of the native backend serves which collective and size.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "base/types.h"

namespace hvd {

enum class Algorithm : std::uint8_t {
  kLocalCopy,     // one rank: copy and scale
  kHostEveryone,  // each rank reads all inputs from the arena and reduces everything
  kHostShares,    // each rank reduces its share from the arena, then reads the others'
  kHostStreams,   // each rank streams what it has through its lane
  kLeaders,       // one rank per host works with the other hosts (few bytes: few messages)
  kRings,         // ranks of equal local index work with the other hosts, each on its share
  kPairs,         // every rank exchanges directly with every rank of another host
};

inline constexpr std::size_t kAnySize = std::numeric_limits<std::size_t>::max();

struct AlgorithmRow {
  Collective kind;
  bool several_hosts;
  std::size_t up_to_bytes;  // of the work on one rank, all its tensors together
  Algorithm algorithm;
  std::string_view description;
};

std::span<const AlgorithmRow> algorithm_table();
Algorithm choose_algorithm(Collective kind, std::size_t ranks, std::size_t hosts,
                           std::size_t bytes);

// Bytes of a reduction that go through the arena as one piece, all shares together.
std::size_t choose_piece_bytes(std::size_t shares, std::size_t slot_bytes);

// The table as text, for people.
std::string algorithm_table_text();

}  // namespace hvd
