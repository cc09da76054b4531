// The engine with several ranks in one process: results, order, errors, shutdown.
#include "testing.h"

#include <fcntl.h>

#include <barrier>
#include <bit>
#include <cstdint>
#include <random>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "engine_world.h"

using namespace hvd;
using hvd::test::EngineWorld;

namespace {

std::vector<float> input_of(Rank rank, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(rank + 1) * static_cast<float>(i % 13);
  }
  return values;
}

// As frameworks set their threads: tiny results and operands count as zero.
void set_flush_to_zero() {
#if defined(__x86_64__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#endif
}

float sum_of_ranks(Rank size) { return static_cast<float>(size * (size + 1) / 2); }

}  // namespace

TEST_CASE("an allreduce sums over all ranks, on one host and on several") {
  for (const auto& hosts : std::vector<std::vector<int>>{{1}, {2}, {4}, {1, 1}, {2, 2}, {2, 1}}) {
    EngineWorld world(hosts);
    world.for_each_rank([&](Rank rank) {
      for (const std::int64_t count : {0, 1, 7, 1000, 300'000}) {
        const auto input = input_of(rank, count);
        std::vector<float> output(input.size(), -1.0f);
        const auto handle = world.allreduce(
            rank, EngineWorld::allreduce_request("t" + std::to_string(count), count), input,
            output);
        CHECK(world.wait(rank, *handle).is_ok());
        for (std::size_t i = 0; i < output.size(); ++i) {
          if (output[i] != sum_of_ranks(world.size()) * static_cast<float>(i % 13)) {
            FAIL_CHECK("rank " << rank << " element " << i << ": " << output[i]);
            break;
          }
        }
      }
    });
  }
}

TEST_CASE("ranks may submit in any order, again and again") {
  EngineWorld world({2, 1});
  constexpr int kTensors = 50;
  for (int round = 0; round < 3; ++round) {
    world.for_each_rank([&](Rank rank) {
      std::vector<int> order(kTensors);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(rank + round)));
      std::vector<std::vector<float>> inputs(kTensors);
      std::vector<std::vector<float>> outputs(kTensors);
      std::vector<std::shared_ptr<Handle>> handles(kTensors);
      for (const int i : order) {
        const auto at = static_cast<std::size_t>(i);
        inputs[at] = input_of(rank, 100 + i);
        outputs[at].resize(inputs[at].size());
        handles[at] =
            world.allreduce(rank, EngineWorld::allreduce_request("t" + std::to_string(i), 100 + i),
                            inputs[at], outputs[at], false);
      }
      for (std::size_t i = 0; i < kTensors; ++i) {
        CHECK(world.wait(rank, *handles[i]).is_ok());
        CHECK(outputs[i][5] == sum_of_ranks(world.size()) * 5);
      }
    });
  }
}

TEST_CASE("a mismatch fails on all ranks and leaves the rest alone") {
  EngineWorld world({2});
  world.for_each_rank([&](Rank rank) {
    const std::int64_t count = 4 + rank;
    const auto input = input_of(rank, count);
    std::vector<float> output(input.size());
    const auto bad =
        world.allreduce(rank, EngineWorld::allreduce_request("bad", count), input, output);
    const Status status = world.wait(rank, *bad);
    CHECK(status.code() == StatusCode::kMismatch);
    CHECK(status.text().find("Mismatched ALLREDUCE tensor shapes") != std::string::npos);
    const auto good =
        world.allreduce(rank, EngineWorld::allreduce_request("good", 4), input, output);
    CHECK(world.wait(rank, *good).is_ok());
  });
}

TEST_CASE("a name in flight twice is refused at the call and the first one completes") {
  EngineWorld world({2});
  const auto input = input_of(0, 8);
  std::vector<float> output(8);
  std::vector<float> other(8);
  const auto first =
      world.allreduce(0, EngineWorld::allreduce_request("twice", 8), input, output, false);
  std::string error;
  CHECK(world.allreduce(0, EngineWorld::allreduce_request("twice", 8), input, other, false,
                        &error) == nullptr);
  CHECK(error.find("same name as another tensor") != std::string::npos);
  const auto peer =
      world.allreduce(1, EngineWorld::allreduce_request("twice", 8), input, other, false);
  CHECK(world.wait(0, *first).is_ok());
  CHECK(world.wait(1, *peer).is_ok());
}

TEST_CASE("what is pending when a rank shuts down fails with the shut-down text") {
  EngineWorld world({3});
  const auto input = input_of(0, 8);
  std::vector<float> output(8);
  for (const Rank rank : {0, 1}) {
    const auto pending =
        world.allreduce(rank, EngineWorld::allreduce_request("lonely", 8), input, output, false);
    if (rank == 0) world.engine(2).stop();
    if (pending == nullptr) continue;  // rank 1 has heard of the shutdown already
    const Status status = world.wait(rank, *pending);
    CHECK(status.code() == StatusCode::kAborted);
    CHECK(status.text().starts_with("Horovod has been shut down."));
  }
  std::string error;
  CHECK(world.allreduce(1, EngineWorld::allreduce_request("late", 8), input, output, false,
                        &error) == nullptr);
  CHECK(error.starts_with("Horovod has been shut down."));
}

TEST_CASE("tiny numbers are not flushed to zero, whatever the mode of the caller's thread") {
  EngineWorld world({2});
  world.for_each_rank([&](Rank rank) {
    set_flush_to_zero();
    constexpr std::uint32_t kTiny = 1000;  // as bits: 1000 times the smallest number
    const std::vector<float> input(8, std::bit_cast<float>(kTiny));
    std::vector<float> output(8);
    for (int round = 0; round < 20; ++round) {
      const auto handle =
          world.allreduce(rank, EngineWorld::allreduce_request("tiny", 8), input, output);
      CHECK(world.wait(rank, *handle).is_ok());
      CHECK(std::bit_cast<std::uint32_t>(output[7]) == 2 * kTiny);
    }
  });
}

// Of two ranks with `count` allreduces each that nobody waits for yet.
struct Waiting {
  static constexpr std::int64_t kElements = 8;
  Waiting(EngineWorld& world, Rank rank, int count, const std::string& prefix = "t")
      : input(input_of(rank, kElements)), outputs(static_cast<std::size_t>(count), input) {
    for (int i = 0; i < count; ++i) {
      handles.push_back(world.allreduce(
          rank, EngineWorld::allreduce_request(prefix + std::to_string(i), kElements), input,
          outputs[static_cast<std::size_t>(i)], false));
    }
  }
  bool is_right(std::size_t i) const {
    for (std::size_t at = 0; at < input.size(); ++at) {
      if (outputs[i][at] != sum_of_ranks(2) * static_cast<float>(at % 13)) return false;
    }
    return true;
  }
  std::vector<float> input;
  std::vector<std::vector<float>> outputs;
  std::vector<std::shared_ptr<Handle>> handles;
};

TEST_CASE("where ranks take all cores, what nobody waits for wakes nobody") {
  EngineWorld world({2}, {}, 2);
  std::barrier submitted(2);
  world.for_each_rank([&](Rank rank) {
    const auto began = std::chrono::steady_clock::now();
    const auto rung = world.engine(rank).counters().at("doorbells_rung");
    const Waiting waiting(world, rank, 100);
    const auto more = world.engine(rank).counters().at("doorbells_rung") - rung;
    const auto cycles = [began] {
      return static_cast<std::uint64_t>((std::chrono::steady_clock::now() - began) /
                                        std::chrono::milliseconds(20));
    };
    if (rank == 1) CHECK(more <= 1 + cycles());
    submitted.arrive_and_wait();
    const std::uint64_t cycles_of_both = cycles();
    for (std::size_t i = 0; i < waiting.handles.size(); ++i) {
      CHECK(world.wait(rank, *waiting.handles[i]).is_ok());
      CHECK(waiting.is_right(i));
    }
    // Some in each cycle if that took long, and all that is left when the first was waited for.
    CHECK(world.engine(rank).counters().at("responses_executed") <= 10 + 2 * cycles_of_both);
  });
}

TEST_CASE("whoever polls says that somebody waits") {
  for (const int cores : {2, 1 << 10}) {
    EngineWorld world({2}, {}, cores);
    world.for_each_rank([&](Rank rank) {
      const Waiting waiting(world, rank, 1);
      CHECK_FALSE(waiting.handles[0]->urgent);
      while (!world.engine(rank).poll(*waiting.handles[0])) std::this_thread::yield();
      CHECK(waiting.handles[0]->urgent);
      CHECK(waiting.is_right(0));
    });
  }
}

TEST_CASE("a caller that sleeps is called to execute what it waits for") {
  for (const int cores : {2, 1 << 10}) {
    EngineWorld world({2}, {}, cores);
    int by_caller = 0;
    constexpr int kRounds = 20;
    std::vector<std::shared_ptr<Handle>> of_first(kRounds);
    for (auto& sleeping : of_first) {
      std::atomic<bool> there{false};
      world.for_each_rank([&](Rank rank) {
        if (rank == 1) {
          there.wait(false);
          while (!sleeping->blocks_caller) std::this_thread::yield();
        }
        Submission submission;
        submission.urgent = true;
        submission.requests.push_back(EngineWorld::allreduce_request("t", 4));
        submission.requests.back().kind = Collective::kAllgather;
        std::vector<float> input(4, 1.0f), output(8);
        WorkTensor tensor;
        tensor.input = input.data();
        tensor.shape = {4};
        std::thread::id executed_by;
        tensor.allocate = [&](const Shape&, std::size_t) {
          executed_by = std::this_thread::get_id();
          return static_cast<void*>(output.data());
        };
        submission.tensors.push_back(std::move(tensor));
        const auto handle = world.submit(rank, std::move(submission));
        if (rank == 0) {
          sleeping = handle;
          there = true;
          there.notify_one();
        }
        CHECK(world.wait(rank, *handle).is_ok());
        CHECK(output == std::vector<float>(8, 1.0f));
        if (rank == 0) by_caller += executed_by == std::this_thread::get_id() ? 1 : 0;
      });
    }
    CHECK(by_caller > kRounds / 2);  // the answer may come just before it sleeps
  }
}

TEST_CASE("several callers of a rank wait for different things") {
  for (const int cores : {1, 2, 1 << 10}) {
    EngineWorld world({2}, {}, cores);
    world.for_each_rank([&](Rank rank) {
      std::vector<std::thread> callers;
      for (const std::string name : {"a", "b", "c"}) {
        callers.emplace_back([&world, rank, name] {
          for (int round = 0; round < 50; ++round) {
            const Waiting waiting(world, rank, 3, name + std::to_string(round) + ".");
            for (std::size_t i : {2, 0, 1}) {
              CHECK(world.wait(rank, *waiting.handles[i]).is_ok());
              CHECK(waiting.is_right(i));
            }
          }
        });
      }
      for (std::thread& caller : callers) caller.join();
    });
  }
}

TEST_CASE("an idle job sends no messages") {
  EngineWorld world({2, 1});
  const auto input = input_of(0, 8);
  world.for_each_rank([&](Rank rank) {
    std::vector<float> output(8);
    const auto handle =
        world.allreduce(rank, EngineWorld::allreduce_request("once", 8), input, output);
    CHECK(world.wait(rank, *handle).is_ok());
  });
  std::vector<std::uint64_t> before;
  for (Rank rank = 0; rank < world.size(); ++rank) {
    before.push_back(world.engine(rank).counters().at("messages_sent"));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (Rank rank = 0; rank < world.size(); ++rank) {
    CHECK(world.engine(rank).counters().at("messages_sent") ==
          before[static_cast<std::size_t>(rank)]);
  }
}

TEST_CASE("starting and stopping a hundred times leaves no descriptor behind") {
  const auto open_descriptors = [] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) != -1 ? 1 : 0;
    return count;
  };
  {
    EngineWorld warm_up({2});
  }
  const int before = open_descriptors();
  for (int round = 0; round < 100; ++round) EngineWorld world({2});
  CHECK(open_descriptors() == before);
}
