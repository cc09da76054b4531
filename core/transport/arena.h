// Arena: the shared memory through which the ranks of one host exchange bytes.
//
// Every rank owns a lane: three counters, a word to sleep on, and staging slots. It writes only to
// its own lane and reads everybody's. The counters only grow, because all ranks execute responses
// in the order of the log: a value is made of the response's number and the number of a piece
// within it, so "counter >= value" is the one question anybody asks, whatever process sets the
// ranks are in.
//
//   filled   my slot of this piece holds my contribution
//   reduced  my slot of this piece holds my share of the result
//   drained  I have read what I need of this piece from all lanes
//
// A rank writes a slot again only after all readers of its last contents have drained them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/config.h"
#include "transport/wait_control.h"

namespace hvd {

enum class Counter : std::uint8_t { kFilled = 0, kReduced = 1, kDrained = 2 };

class Arena {
 public:
  static std::size_t lane_bytes(const Config& config);

  // `lanes`: the mapped lanes of all ranks of this host, equal in order everywhere, zero at the
  // start.
  Arena(const Config& config, std::vector<std::span<std::byte>> lanes, std::size_t my_lane,
        WaitControl& wait);

  std::size_t lane_count() const { return lanes_.size(); }
  std::size_t my_lane() const { return my_lane_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  std::size_t slot_count() const { return claims_.size(); }
  std::byte* slot(std::size_t lane, std::size_t index) const;

  // False: the job was aborted.
  bool wait(std::size_t lane, Counter counter, std::uint64_t value);
  bool has_reached(std::size_t lane, Counter counter, std::uint64_t value) const;
  // Sleeps until the counter has been reached, but not for long.
  void doze(std::size_t lane, Counter counter, std::uint64_t value);
  bool aborted() const { return wait_.aborted(); }
  void publish(Counter counter, std::uint64_t value);

  // A thread of another rank sleeps until this rank publishes.
  bool peer_waits() const;

  // Blocks until all readers of slot `index` have drained it, then notes that `readers` will read
  // what is written next and will have drained it at `value`. False: the job was aborted.
  bool claim(std::size_t index, std::uint64_t value, std::span<const std::size_t> readers);

  // A word in my lane that travels with the next publication, and its value in another lane.
  void set_hint(std::uint32_t hint);
  std::uint32_t hint(std::size_t lane) const;

  // The core on which this rank published or waited last; -1: it has not yet.
  int core(std::size_t lane) const;

 private:
  struct Line {  // a counter has its own pair of cache lines: neighbours are fetched together
    alignas(128) std::atomic<std::uint64_t> value;
  };
  struct Control {
    std::array<Line, 3> counters;
    alignas(128) std::atomic<std::uint32_t> bell;  // changes at every publication that has waiters
    std::atomic<std::uint32_t> waiters;            // threads asleep or about to be
    alignas(128) std::atomic<std::uint32_t> hint;
    std::atomic<std::int32_t> core_plus_one;
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  // What this rank last put into one of its slots: who reads it, and when they are through.
  struct Claim {
    std::uint64_t value = 0;
    std::vector<std::size_t> readers;
  };

  Control& control(std::size_t lane) const;
  bool wait_slowly(std::size_t lane, Counter counter, std::uint64_t value);
  bool wait_since(std::chrono::steady_clock::time_point began, std::size_t lane, Counter counter,
                  std::uint64_t value);
  template <class Continue>
  bool sleep_until(std::size_t lane, Counter counter, std::uint64_t value,
                   std::chrono::nanoseconds limit, Continue go_on);
  void note_core();
  void leave_core_of(std::size_t lane);
  bool spin(const std::atomic<std::uint64_t>& counter, std::uint64_t value,
            std::chrono::steady_clock::time_point began);
  bool yield_to_peers(const std::atomic<std::uint64_t>& counter, std::uint64_t value);

  std::vector<std::span<std::byte>> lanes_;
  std::size_t my_lane_;
  std::size_t slot_bytes_;
  WaitControl& wait_;
  std::vector<Claim> claims_;
  int waits_without_yield_ = 0;  // left
  int noted_core_ = -1;
  std::chrono::steady_clock::time_point next_move_{};
};

// ArenaTurn: one response's use of the arena by the members of one process set on this host. Pieces
// are numbered through all phases of the response; every member must count the same pieces.
class ArenaTurn {
 public:
  // `lanes`: of the members, in rank order; mine is lanes[me].
  ArenaTurn(Arena& arena, std::uint64_t sequence, std::span<const std::size_t> lanes,
            std::size_t me);

  std::size_t members() const { return lanes_.size(); }
  std::size_t me() const { return me_; }
  std::size_t slot_bytes() const { return arena_.slot_bytes(); }
  std::size_t slot_count() const { return arena_.slot_count(); }

  // Pieces of this phase need only `bytes` of a slot: small works then move about in their slots.
  // Lines that were written and read a moment ago are in the private caches of two cores and slow
  // to write again; by the time that a work comes back to them, they are in the cache that the
  // cores share.
  void set_piece_bytes(std::size_t bytes);

  // `piece` counts from the start of the current phase.
  bool claim(std::size_t piece);
  std::byte* my_slot(std::size_t piece) const { return slot(me_, piece); }
  std::byte* slot(std::size_t member, std::size_t piece) const;
  void publish(Counter counter, std::size_t piece);
  bool wait(std::size_t member, Counter counter, std::size_t piece);
  bool wait_all(Counter counter, std::size_t piece);

  // What this rank does beside its work in the arena, a little at a time: whenever it has published a
  // piece, and while it waits for others. Returns whether there was anything to do; empty: nothing.
  void set_beside(std::function<bool()> beside) { beside_ = std::move(beside); }

  void set_hint(std::uint32_t hint) { arena_.set_hint(hint); }
  std::uint32_t hint(std::size_t member) const { return arena_.hint(lanes_[member]); }

  // Whether one response can number `pieces` more pieces.
  bool fits(std::size_t pieces) const;
  // Ends a phase that used `pieces` pieces.
  void next_phase(std::size_t pieces) {
    first_piece_ += pieces;
    offset_ = 0;
  }

 private:
  std::uint64_t value(std::size_t piece) const { return base_ + first_piece_ + piece + 1; }

  Arena& arena_;
  std::uint64_t sequence_;
  std::uint64_t base_;
  std::size_t first_piece_ = 0;
  std::size_t offset_ = 0;  // within every slot
  std::span<const std::size_t> lanes_;
  std::size_t me_;
  std::function<bool()> beside_;
};

}  // namespace hvd
