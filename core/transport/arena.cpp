// Arena: counters, waiting and slots. See arena.h for the protocol.
#include "transport/arena.h"

#include <sched.h>

#include <algorithm>
#include <cassert>
#include <chrono>

#include "base/cpu.h"
#include "transport/futex.h"

namespace hvd {

namespace {

constexpr std::size_t kPage = 4096;
constexpr int kPieceBits = 24;
constexpr std::int32_t kFewestSlots = 3;  // one is filled, one reduced and one drained side by side
constexpr int kYields = 8;
constexpr auto kSlowYield = std::chrono::microseconds(200);
constexpr int kWaitsAfterSlowYield = 1000;
constexpr auto kBetweenMoves = std::chrono::milliseconds(1);
constexpr auto kSleepLimit = std::chrono::milliseconds(100);  // then look for an abort
constexpr auto kDozeLimit = std::chrono::microseconds(200);   // then look after other things

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::size_t slot_bytes_of(const Config& config) {
  return rounded_up(static_cast<std::size_t>(std::max<std::int64_t>(config.slot_bytes, 1)), kPage);
}

std::size_t slots_of(const Config& config) {
  return static_cast<std::size_t>(std::max(config.slots, kFewestSlots));
}

}  // namespace

std::size_t Arena::lane_bytes(const Config& config) {
  return rounded_up(sizeof(Control), kPage) + slots_of(config) * slot_bytes_of(config);
}

Arena::Arena(const Config& config, std::vector<std::span<std::byte>> lanes, std::size_t my_lane,
             WaitControl& wait)
    : lanes_(std::move(lanes)),
      my_lane_(my_lane),
      slot_bytes_(slot_bytes_of(config)),
      wait_(wait),
      claims_(slots_of(config)) {
  for ([[maybe_unused]] const auto& lane : lanes_) assert(lane.size() >= lane_bytes(config));
}

Arena::Control& Arena::control(std::size_t lane) const {
  return *reinterpret_cast<Control*>(lanes_[lane].data());
}

std::byte* Arena::slot(std::size_t lane, std::size_t index) const {
  return lanes_[lane].data() + rounded_up(sizeof(Control), kPage) + index * slot_bytes_;
}

bool Arena::has_reached(std::size_t lane, Counter counter, std::uint64_t value) const {
  const auto& reached = control(lane).counters[static_cast<std::size_t>(counter)].value;
  return reached.load(std::memory_order_acquire) >= value;
}

bool Arena::wait(std::size_t lane, Counter counter, std::uint64_t value) {
  return has_reached(lane, counter, value) || wait_slowly(lane, counter, value);
}

bool Arena::spin(const std::atomic<std::uint64_t>& counter, std::uint64_t value,
                 std::chrono::steady_clock::time_point began) {
  const auto time = wait_.spin_time();
  if (time <= std::chrono::nanoseconds::zero()) return false;
  const auto end = began + time;
  do {
    for (int i = 0; i < 64; ++i) {
      if (counter.load(std::memory_order_acquire) >= value) return true;
      cpu_relax();
    }
  } while (!wait_.aborted() && std::chrono::steady_clock::now() < end);
  return false;
}

void Arena::note_core() {
  const int core = current_core();
  if (core == noted_core_) return;
  noted_core_ = core;
  control(my_lane_).core_plus_one.store(core + 1, std::memory_order_relaxed);
}

int Arena::core(std::size_t lane) const {
  return control(lane).core_plus_one.load(std::memory_order_relaxed) - 1;
}

// Where all cores were busy until now the kernel leaves threads that wake each other up on one of them,
// even if another has become idle. They would exchange piece by piece in turns: who waits goes away.
void Arena::leave_core_of(std::size_t lane) {
  note_core();
  if (core(lane) != noted_core_ || !wait_.has_core_for_each_rank()) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_move_) return;
  next_move_ = now + kBetweenMoves;
  std::vector<int> taken;
  for (std::size_t other = 0; other < lanes_.size(); ++other) taken.push_back(core(other));
  if (move_to_core_other_than(taken)) note_core();
}

// Where several ranks share a core, the one that is waited for is usually next in line: letting it
// run costs a microsecond, sleeping and being woken ten. But when the core has other work, it may
// be milliseconds until it comes back; a slow yield is therefore the last one for a while.
bool Arena::yield_to_peers(const std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  if (waits_without_yield_ > 0) {
    --waits_without_yield_;
    return false;
  }
  auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < kYields; ++i) {
    ::sched_yield();
    const auto after = std::chrono::steady_clock::now();
    if (after - before > kSlowYield) waits_without_yield_ = kWaitsAfterSlowYield;
    if (counter.load(std::memory_order_acquire) >= value) return true;
    if (waits_without_yield_ > 0) return false;
    before = after;
  }
  return false;
}

// A waiter announces itself before it looks for the last time, a publisher stores before it looks
// for waiters; both in one total order (seq_cst), so at least one sees the other and no wake-up is
// lost.
template <class Continue>
bool Arena::sleep_until(std::size_t lane, Counter counter, std::uint64_t value,
                        std::chrono::nanoseconds limit, Continue go_on) {
  Control& owner = control(lane);
  const auto& reached = owner.counters[static_cast<std::size_t>(counter)].value;
  owner.waiters.fetch_add(1, std::memory_order_seq_cst);
  bool arrived = false;
  do {
    const std::uint32_t seen = owner.bell.load(std::memory_order_seq_cst);
    arrived = reached.load(std::memory_order_seq_cst) >= value;
    if (arrived || wait_.aborted()) break;
    futex_wait(owner.bell, seen, limit);
  } while (go_on());
  owner.waiters.fetch_sub(1, std::memory_order_seq_cst);
  return arrived;
}

bool Arena::wait_slowly(std::size_t lane, Counter counter, std::uint64_t value) {
  const auto began = std::chrono::steady_clock::now();
  const bool arrived = wait_since(began, lane, counter, value);
  wait_.data_wait.add(began, std::chrono::steady_clock::now());
  return arrived;
}

bool Arena::wait_since(std::chrono::steady_clock::time_point began, std::size_t lane,
                       Counter counter, std::uint64_t value) {
  const auto& reached = control(lane).counters[static_cast<std::size_t>(counter)].value;
  leave_core_of(lane);
  if (spin(reached, value, began) || yield_to_peers(reached, value)) return true;
  wait_.about_to_sleep();
  return sleep_until(lane, counter, value, kSleepLimit, [] { return true; });
}

void Arena::doze(std::size_t lane, Counter counter, std::uint64_t value) {
  leave_core_of(lane);
  sleep_until(lane, counter, value, kDozeLimit, [] { return false; });
}

void Arena::publish(Counter counter, std::uint64_t value) {
  note_core();
  Control& mine = control(my_lane_);
  mine.counters[static_cast<std::size_t>(counter)].value.store(value, std::memory_order_seq_cst);
  if (mine.waiters.load(std::memory_order_seq_cst) == 0) return;
  mine.bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(mine.bell);
}

bool Arena::peer_waits() const {
  return control(my_lane_).waiters.load(std::memory_order_relaxed) > 0;
}

bool Arena::claim(std::size_t index, std::uint64_t value, std::span<const std::size_t> readers) {
  Claim& claim = claims_[index];
  for (const std::size_t reader : claim.readers) {
    if (reader != my_lane_ && !wait(reader, Counter::kDrained, claim.value)) return false;
  }
  claim.value = value;
  claim.readers.assign(readers.begin(), readers.end());
  return true;
}

void Arena::set_hint(std::uint32_t hint) {
  control(my_lane_).hint.store(hint, std::memory_order_relaxed);
}

std::uint32_t Arena::hint(std::size_t lane) const {
  return control(lane).hint.load(std::memory_order_relaxed);
}

ArenaTurn::ArenaTurn(Arena& arena, std::uint64_t sequence, std::span<const std::size_t> lanes,
                     std::size_t me)
    : arena_(arena), sequence_(sequence), base_(sequence << kPieceBits), lanes_(lanes), me_(me) {}

bool ArenaTurn::claim(std::size_t piece) {
  const std::size_t index = (sequence_ + first_piece_ + piece) % arena_.slot_count();
  return arena_.claim(index, value(piece), lanes_);
}

std::byte* ArenaTurn::slot(std::size_t member, std::size_t piece) const {
  const std::size_t index = (sequence_ + first_piece_ + piece) % arena_.slot_count();
  return arena_.slot(lanes_[member], index) + offset_;
}

void ArenaTurn::set_piece_bytes(std::size_t bytes) {
  const std::size_t room = rounded_up(bytes, kPage);
  const std::size_t places = bytes < kPage ? 1 : std::max<std::size_t>(slot_bytes() / room, 1);
  offset_ = sequence_ / slot_count() % places * room;
}

void ArenaTurn::publish(Counter counter, std::size_t piece) {
  arena_.publish(counter, value(piece));
  if (beside_) beside_();
}

bool ArenaTurn::wait(std::size_t member, Counter counter, std::size_t piece) {
  const std::size_t lane = lanes_[member];
  if (!beside_) return arena_.wait(lane, counter, value(piece));
  while (!arena_.has_reached(lane, counter, value(piece))) {
    if (arena_.aborted()) return false;
    if (!beside_()) arena_.doze(lane, counter, value(piece));
  }
  return true;
}

bool ArenaTurn::wait_all(Counter counter, std::size_t piece) {
  for (std::size_t member = 0; member < lanes_.size(); ++member) {
    if (member != me_ && !wait(member, counter, piece)) return false;
  }
  return true;
}

bool ArenaTurn::fits(std::size_t pieces) const {
  return pieces < (std::size_t{1} << kPieceBits) - first_piece_;
}

}  // namespace hvd
