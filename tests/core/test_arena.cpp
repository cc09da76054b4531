// The arena: waiting without lost wake-ups, slots that are not written before they are read, abort.
#include <sched.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/cpu.h"
#include "collectives/host_exchange.h"
#include "native_world.h"
#include "testing.h"
#include "transport/arena.h"

using namespace hvd;
using hvd::testing::Hosts;
using hvd::testing::TestWait;
using hvd::testing::World;

namespace {

constexpr auto kNoSpin = std::chrono::nanoseconds(0);
constexpr auto kShortSpin = std::chrono::microseconds(5);

std::vector<int> usable_cores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

void bind_to(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &set);
  REQUIRE(sched_setaffinity(0, sizeof set, &set) == 0);
}

// Rank 0 stays on the first core and publishes only when rank 1, which begins there, too, waits on
// another one, or after `patience`. Returns whether it did.
bool second_rank_moves(std::chrono::seconds patience) {
  World world(Hosts{{0, 1}}, World::small_config(), kNoSpin);
  world.wait(1).give_core();
  const std::vector<int> cores = usable_cores();
  std::atomic<bool> moved{false};
  world.run(world.all(), [&](Rank rank) {
    Arena& arena = world.arena(rank);
    bind_to({cores.front()});
    if (rank == 0) {
      arena.publish(Counter::kFilled, 1);
      const auto end = std::chrono::steady_clock::now() + patience;
      while (!moved && std::chrono::steady_clock::now() < end) {
        moved = arena.core(1) >= 0 && arena.core(1) != cores.front();
        sched_yield();
      }
      arena.publish(Counter::kFilled, 2);
    } else {
      while (!arena.has_reached(0, Counter::kFilled, 1)) sched_yield();
      bind_to(cores);
      arena.wait(0, Counter::kFilled, 2);
      CHECK(usable_cores() == cores);  // it may use all again
    }
  });
  return moved;
}

}  // namespace

TEST_CASE("a lane holds its control lines and all slots") {
  Config config;
  config.slot_bytes = 1000;  // rounded up to a page
  config.slots = 3;
  CHECK(Arena::lane_bytes(config) == 4096 + 3 * 4096);
}

TEST_CASE("two ranks hand a counter to and fro, sleeping or spinning, and no wake-up is lost") {
  for (const std::chrono::nanoseconds spin : {kNoSpin, std::chrono::nanoseconds(kShortSpin)}) {
    World world(Hosts{{0, 1}}, World::small_config(), spin);
    constexpr std::uint64_t kRounds = 3000;
    std::atomic<std::uint64_t> reached{0};
    world.run(world.all(), [&](Rank rank) {
      Arena& arena = world.arena(rank);
      for (std::uint64_t i = 1; i <= kRounds; ++i) {
        if (rank == 0) arena.publish(Counter::kFilled, i);
        if (!arena.wait(1 - rank, Counter::kFilled, i)) return;
        if (rank == 1) arena.publish(Counter::kFilled, i);
        reached.fetch_add(1);
      }
    });
    CHECK(reached.load() == 2 * kRounds);
  }
}

TEST_CASE("a rank that would wait on the core of the one it waits for moves to another") {
  if (usable_cores().size() < 2) return;
  CHECK(second_rank_moves(std::chrono::seconds(30)));
}

TEST_CASE("a thread leaves the cores that are taken, and is bound to none") {
  const std::vector<int> cores = usable_cores();
  CHECK_FALSE(move_to_core_other_than(cores));
  CHECK(usable_cores() == cores);
  CHECK(move_to_core_other_than({-1}) == !cores.empty());
  if (cores.size() < 2) return;
  const std::vector<int> all_but_last(cores.begin(), cores.end() - 1);
  CHECK(move_to_core_other_than(all_but_last));
  CHECK(usable_cores() == cores);
}

TEST_CASE("several waiters on one lane all wake") {
  World world(Hosts{{0, 1, 2, 3}}, World::small_config(), kNoSpin);
  std::atomic<int> woken{0};
  world.run(world.all(), [&](Rank rank) {
    Arena& arena = world.arena(rank);
    for (std::uint64_t i = 1; i <= 300; ++i) {
      if (rank == 0) {
        for (std::size_t other = 1; other < 4; ++other) arena.wait(other, Counter::kReduced, i);
        arena.publish(Counter::kFilled, i);
      } else {
        arena.publish(Counter::kReduced, i);
        if (arena.wait(0, Counter::kFilled, i)) woken.fetch_add(1);
      }
    }
  });
  CHECK(woken.load() == 3 * 300);
}

TEST_CASE("a wait says once that it is going to sleep") {
  World world(Hosts{{0, 1}}, World::small_config(), kNoSpin);
  world.run(world.all(), [&](Rank rank) {
    Arena& arena = world.arena(rank);
    if (rank == 0) {
      arena.wait(1, Counter::kFilled, 1);
    } else {
      while (world.wait(0).sleeps() == 0) std::this_thread::yield();
      arena.publish(Counter::kFilled, 1);
    }
  });
  CHECK(world.wait(0).sleeps() == 1);
  CHECK(world.wait(1).sleeps() == 0);
}

TEST_CASE("an abort ends a wait, asleep or spinning") {
  for (const std::chrono::nanoseconds spin :
       {kNoSpin, std::chrono::nanoseconds(std::chrono::hours(1))}) {
    World world(Hosts{{0, 1}}, World::small_config(), spin);
    std::atomic<bool> gave_up{false};
    world.run({0, 1}, [&](Rank rank) {
      if (rank == 0) {
        gave_up.store(!world.arena(0).wait(1, Counter::kFilled, 1));
      } else {
        world.wait(0).abort();
      }
    });
    CHECK(gave_up.load());
  }
}

TEST_CASE("a slot is claimed again only after its readers drained it") {
  World world(Hosts{{0, 1, 2}});
  Arena& mine = world.arena(0);
  const std::vector<std::size_t> two{0, 1};
  REQUIRE(mine.claim(0, 5, two));
  world.arena(1).publish(Counter::kDrained, 4);
  world.wait(0).abort();  // so that the claim below gives up instead of waiting
  CHECK_FALSE(mine.claim(0, 6, two));
  world.arena(1).publish(Counter::kDrained, 5);
  CHECK(mine.claim(0, 6, two));
  CHECK(mine.claim(1, 6, two));  // another slot, never used
}

TEST_CASE("streams of any length, with headers longer than a slot, arrive whole") {
  for (const std::size_t header_bytes : {0, 8, 4096, 9000}) {
    World world(Hosts{{0, 1, 2}});
    const std::vector<std::size_t> lengths{0, 5, 30000};
    std::atomic<int> right{0};
    world.run(world.all(), [&](Rank rank) {
      const std::vector<std::size_t> lanes{0, 1, 2};
      StorePolicy stores;
      for (std::uint64_t sequence = 0; sequence < 4; ++sequence) {
        ArenaTurn turn(world.arena(rank), sequence, lanes, rank);
        const std::vector<std::byte> header(header_bytes, static_cast<std::byte>(rank + 1));
        const std::size_t my_length = lengths[(rank + sequence) % 3];
        const std::vector<std::byte> data(my_length, static_cast<std::byte>(10 * rank + sequence));
        SegmentList stream;
        stream.add({data.data(), nullptr, data.size()});
        std::vector<std::vector<std::byte>> received(3);
        std::vector<SegmentList> places(3);
        bool headers_right = true;
        Status status = host_exchange(
            turn, header, stream, stores,
            [&](std::span<const std::vector<std::byte>> headers, ExchangePlan& plan) {
              for (std::size_t m = 0; m < 3; ++m) {
                const std::byte expected = static_cast<std::byte>(m + 1);
                headers_right &= headers[m] == std::vector<std::byte>(header_bytes, expected);
                const std::size_t length = lengths[(m + sequence) % 3];
                const std::size_t skip = length / 3;  // the first third is for nobody
                received[m].resize(length - skip);
                places[m].add({nullptr, received[m].data(), received[m].size()});
                plan.stream_bytes.push_back(length);
                plan.landings.push_back({skip, places[m]});
              }
              return Status::ok();
            });
        bool data_right = status.is_ok();
        for (std::size_t m = 0; m < 3; ++m) {
          if (m == static_cast<std::size_t>(rank)) continue;
          const std::byte expected = static_cast<std::byte>(10 * m + sequence);
          data_right &= received[m] == std::vector<std::byte>(received[m].size(), expected);
        }
        if (headers_right && data_right) right.fetch_add(1);
      }
    });
    CHECK(right.load() == 3 * 4);
  }
}
