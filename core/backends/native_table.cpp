// The algorithm table of the native backend. The first row that fits counts.
#include "backends/native_table.h"

#include <algorithm>
#include <array>

namespace hvd {

namespace {

constexpr std::size_t operator""_KiB(unsigned long long n) { return n << 10; }

constexpr std::array kTable{
    AlgorithmRow{Collective::kAllreduce, false, 8_KiB, Algorithm::kHostEveryone,
                 "each rank reads all inputs from the arena and reduces everything"},
    AlgorithmRow{Collective::kAllreduce, false, kAnySize, Algorithm::kHostShares,
                 "each rank reduces its share in the arena and reads the others' shares"},
    AlgorithmRow{Collective::kAllreduce, true, 64_KiB, Algorithm::kLeaders,
                 "arena to one rank per host, recursive doubling between hosts, arena"},
    AlgorithmRow{Collective::kAllreduce, true, kAnySize, Algorithm::kRings,
                 "arena to shares, one ring between hosts for each share, arena"},
    AlgorithmRow{Collective::kAllgather, false, kAnySize, Algorithm::kHostStreams,
                 "each rank streams its rows through its lane of the arena"},
    AlgorithmRow{Collective::kAllgather, true, kAnySize, Algorithm::kRings,
                 "arena, one ring between hosts for each share of a host's rows, arena"},
    AlgorithmRow{Collective::kBroadcast, false, kAnySize, Algorithm::kHostStreams,
                 "the root streams through its lane of the arena"},
    AlgorithmRow{Collective::kBroadcast, true, 64_KiB, Algorithm::kLeaders,
                 "arena on the root's host, one chain of hosts, arena"},
    AlgorithmRow{Collective::kBroadcast, true, kAnySize, Algorithm::kRings,
                 "arena on the root's host, one chain of hosts for each share, arena"},
    AlgorithmRow{Collective::kAlltoall, false, kAnySize, Algorithm::kHostStreams,
                 "each rank streams its rows through its lane, readers pick theirs"},
    AlgorithmRow{Collective::kAlltoall, true, kAnySize, Algorithm::kPairs,
                 "arena within the host, direct exchange with each rank elsewhere"},
    AlgorithmRow{Collective::kReducescatter, false, kAnySize, Algorithm::kHostShares,
                 "each rank reduces its rows in the arena"},
    AlgorithmRow{Collective::kReducescatter, true, kAnySize, Algorithm::kRings,
                 "blocks are reduced as by allreduce, each rank keeps its rows"},
};

}  // namespace

std::span<const AlgorithmRow> algorithm_table() { return kTable; }

Algorithm choose_algorithm(Collective kind, std::size_t ranks, std::size_t hosts,
                           std::size_t bytes) {
  if (ranks == 1) return Algorithm::kLocalCopy;
  const auto row = std::find_if(kTable.begin(), kTable.end(), [&](const AlgorithmRow& r) {
    return r.kind == kind && r.several_hosts == (hosts > 1) && bytes <= r.up_to_bytes;
  });
  return row->algorithm;  // every kind has a row for any size
}

// Measured with two ranks on two cores that shared a cache and that did not: shares of 256 KiB were
// best or near it at all sizes. Smaller pieces mean more waits, larger ones leave the second-level
// cache.
std::size_t choose_piece_bytes(std::size_t shares, std::size_t slot_bytes) {
  return std::min(slot_bytes, shares * 256_KiB);
}

std::string algorithm_table_text() {
  std::string text = "Algorithms of the native backend (one rank alone copies and scales):\n";
  for (const AlgorithmRow& row : kTable) {
    text += std::string(name_of(row.kind)) + (row.several_hosts ? ", several hosts" : ", one host");
    text += row.up_to_bytes == kAnySize
                ? ", other sizes: "
                : ", up to " + std::to_string(row.up_to_bytes / 1_KiB) + " KiB: ";
    text += std::string(row.description) + "\n";
  }
  return text;
}

}  // namespace hvd
