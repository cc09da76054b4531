// Region: one rank's shared memory, mapped by every rank of its host. Holds the rank's attention word,
// the two control rings to and from its host leader, and its lane of the arena.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/config.h"
#include "transport/shm_ring.h"

namespace hvd {

struct RegionHeader {
  // How many threads of the owner poll its rings right now. Zero: a sender must ring the doorbell.
  alignas(128) std::atomic<std::uint32_t> pollers;
};

class Region {
 public:
  // Size of the memory file that a rank creates; equal on all ranks of a job.
  static std::size_t bytes_needed(const Config& config);

  // Maps `bytes_needed` bytes of `memory_file`. Throws std::system_error when that fails.
  Region(int memory_file, const Config& config);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  RegionHeader& header() { return *reinterpret_cast<RegionHeader*>(base_); }
  std::span<std::byte> to_leader() { return {base_ + to_leader_, kShmRingBytes}; }
  std::span<std::byte> from_leader() { return {base_ + from_leader_, kShmRingBytes}; }
  std::span<std::byte> lane() { return {base_ + lane_, bytes_ - lane_}; }

 private:
  static constexpr std::size_t to_leader_ = 4096;
  static constexpr std::size_t from_leader_ = to_leader_ + ((kShmRingBytes + 4095) & ~4095ul);
  static constexpr std::size_t lane_ = from_leader_ + ((kShmRingBytes + 4095) & ~4095ul);

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace hvd
