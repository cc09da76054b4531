// The native backend around its collectives: bits, abort, what it refuses, the algorithm table.
#include <cstring>
#include <random>
#include <vector>

#include "backends/native_table.h"
#include "native_world.h"
#include "testing.h"

using namespace hvd;
using hvd::testing::Hosts;
using hvd::testing::World;

namespace {

// Allreduce of floats on all ranks of `world`, as one tensor or several; the result of every rank.
std::vector<std::vector<float>> allreduce_floats(World& world,
                                                 const std::vector<std::vector<float>>& inputs,
                                                 const std::vector<std::size_t>& cuts,
                                                 std::uint64_t sequence) {
  const std::vector<Rank> members = world.all();
  std::vector<std::vector<float>> outputs(inputs.size(), std::vector<float>(inputs[0].size()));
  world.run(members, [&](Rank rank) {
    Work work;
    work.sequence = sequence;
    work.members = &members;
    work.postscale = 1.0 / world.size();
    std::size_t begin = 0;
    for (const std::size_t end : cuts) {
      WorkTensor tensor;
      tensor.input = inputs[rank].data() + begin;
      tensor.output = outputs[rank].data() + begin;
      tensor.shape = {static_cast<std::int64_t>(end - begin)};
      work.tensors.push_back(tensor);
      begin = end;
    }
    if (!world.backend(rank).execute(work).is_ok()) outputs[rank].clear();
  });
  return outputs;
}

std::vector<std::vector<float>> random_floats(Rank ranks, std::size_t count) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> values(ranks, std::vector<float>(count));
  for (auto& of_rank : values) {
    for (float& value : of_rank) value = normal(random);
  }
  return values;
}

Work float_work(const std::vector<Rank>& members, std::vector<float>& data) {
  Work work;
  work.sequence = 1;
  work.members = &members;
  WorkTensor tensor;
  tensor.input = data.data();
  tensor.output = data.data();
  tensor.shape = {static_cast<std::int64_t>(data.size())};
  work.tensors.push_back(tensor);
  return work;
}

}  // namespace

TEST_CASE("on one host the bits depend neither on fusion nor on slots") {
  const std::size_t count = 20000;
  const auto inputs = random_floats(3, count);
  std::vector<float> expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    expected[i] = ((inputs[0][i] + inputs[1][i]) + inputs[2][i]) * static_cast<float>(1.0 / 3);
  }
  for (const std::int64_t slot_bytes : {4096, 20480, 1 << 20}) {
    for (const std::int32_t slots : {3, 5}) {
      Config config;
      config.slot_bytes = slot_bytes;
      config.slots = slots;
      World world(Hosts{{0, 1, 2}}, config);
      std::uint64_t sequence = 0;
      for (const std::vector<std::size_t>& cuts :
           {std::vector<std::size_t>{count}, {1, 7, 8, 5000, 5001, count}, {10000, 10000, count}}) {
        for (const auto& output : allreduce_floats(world, inputs, cuts, ++sequence)) {
          CHECK(output == expected);
        }
      }
    }
  }
}

TEST_CASE(
    "over several hosts all ranks get equal bits, and with two hosts they are added in host "
    "order") {
  for (const auto& hosts : hvd::testing::layouts()) {
    if (hosts.size() == 1) continue;
    World world(hosts);
    std::uint64_t sequence = 0;
    for (const std::size_t count : {100, 50000}) {
      const auto inputs = random_floats(world.size(), count);
      const auto outputs = allreduce_floats(world, inputs, {count}, ++sequence);
      for (const auto& output : outputs) CHECK(output == outputs[0]);
      if (hosts.size() != 2) continue;
      std::vector<float> expected(count);
      for (std::size_t i = 0; i < count; ++i) {
        float sums[2];
        for (std::size_t h = 0; h < 2; ++h) {
          sums[h] = inputs[hosts[h][0]][i];
          for (std::size_t m = 1; m < hosts[h].size(); ++m) sums[h] += inputs[hosts[h][m]][i];
        }
        expected[i] = (sums[0] + sums[1]) * static_cast<float>(1.0 / world.size());
      }
      CHECK(outputs[0] == expected);
    }
  }
}

TEST_CASE("an abort ends a collective that waits for others") {
  for (const Hosts& hosts : {Hosts{{0, 1, 2}}, Hosts{{0}, {1}}, Hosts{{0, 1}, {2, 3}}}) {
    World world(hosts);
    const std::vector<Rank> members = world.all();
    std::vector<Rank> present = members;
    present.pop_back();  // the last rank never comes
    std::atomic<int> aborted{0};
    std::jthread killer([&] {
      for (const Rank rank : present) {
        while (world.wait(rank).sleeps() == 0) std::this_thread::yield();
      }
      for (const Rank rank : members) world.wait(rank).abort();
    });
    world.run(present, [&](Rank rank) {
      std::vector<float> data(30000, 1.0f);
      Work work = float_work(members, data);
      Status status = world.backend(rank).execute(work);
      if (status.code() == StatusCode::kAborted && !status.text().empty()) aborted.fetch_add(1);
    });
    CHECK(aborted.load() == static_cast<int>(present.size()));
  }
}

TEST_CASE("a peer that closes its channel ends a collective between hosts") {
  World world(Hosts{{0}, {1}});
  const std::vector<Rank> members = world.all();
  world.run({0, 1}, [&](Rank rank) {
    if (rank == 1) {
      world.close_channels(1);
      return;
    }
    std::vector<float> data(30000, 1.0f);
    Work work = float_work(members, data);
    CHECK(world.backend(0).execute(work).code() == StatusCode::kAborted);
  });
}

TEST_CASE("what the backend can't execute it refuses with a sentence") {
  World world(Hosts{{0, 1}});
  const std::vector<Rank> members{0, 1};
  std::vector<float> data(2);
  const Work good = float_work(members, data);
  NativeBackend& backend = world.backend(0);
  CHECK_FALSE(backend.why_not(good).has_value());

  Work work = good;
  work.device = 0;
  CHECK(backend.why_not(work).value().find("device") != std::string::npos);
  work = good;
  work.op = ReduceOp::kMax;
  work.dtype = DataType::kComplex64;
  CHECK(backend.why_not(work).value() == "Max is not defined on complex64.");
  work = good;
  work.op = ReduceOp::kAdasum;
  CHECK(backend.why_not(work).has_value());
  work = good;
  work.dtype = DataType::kBool;
  work.postscale = 0.5;
  CHECK(backend.why_not(work).has_value());
  work = good;
  work.kind = Collective::kJoin;
  CHECK(backend.why_not(work).has_value());
  const std::vector<Rank> others{1};
  work = good;
  work.members = &others;
  CHECK(backend.why_not(work).has_value());
}

TEST_CASE("an output without memory is an error, not a crash") {
  World world(Hosts{{0}});
  const std::vector<Rank> members{0};
  std::vector<float> data(8);
  Work work = float_work(members, data);
  work.kind = Collective::kAllgather;
  work.tensors[0].allocate = [](const Shape&, std::size_t) -> void* { return nullptr; };
  Status status = world.backend(0).execute(work);
  CHECK(status.code() == StatusCode::kAborted);
  CHECK(status.text().find("[8]") != std::string::npos);
}

TEST_CASE("every collective has an algorithm for every size, and the table prints") {
  for (const Collective kind :
       {Collective::kAllreduce, Collective::kAllgather, Collective::kBroadcast,
        Collective::kAlltoall, Collective::kReducescatter}) {
    for (const std::size_t hosts : {1, 2}) {
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{1} << 20, kAnySize}) {
        CHECK(choose_algorithm(kind, 2, hosts, bytes) != Algorithm::kLocalCopy);
      }
    }
    CHECK(choose_algorithm(kind, 1, 1, 100) == Algorithm::kLocalCopy);
    CHECK(algorithm_table_text().find(name_of(kind)) != std::string::npos);
  }
}
