// Every collective of the native backend on every layout of ranks and hosts, against what it must
// give.
#include <cstring>
#include <random>
#include <vector>

#include "base/half.h"
#include "native_world.h"
#include "testing.h"

using namespace hvd;
using hvd::testing::Hosts;
using hvd::testing::layouts;
using hvd::testing::name_of_layout;
using hvd::testing::World;

namespace {

using Bytes = std::vector<std::byte>;

// Small integers, so that sums over any number of ranks in any order are exact in every type.
double value_of(Rank rank, std::size_t i) { return static_cast<double>((i * 7 + rank * 3) % 5); }

void put(DataType dtype, std::byte* at, std::size_t i, double value) {
  const auto store = [&](auto typed) {
    std::memcpy(at + i * sizeof(typed), &typed, sizeof(typed));
  };
  switch (dtype) {
    case DataType::kUint8:
      return store(static_cast<std::uint8_t>(value));
    case DataType::kInt8:
      return store(static_cast<std::int8_t>(value));
    case DataType::kUint16:
      return store(static_cast<std::uint16_t>(value));
    case DataType::kInt16:
      return store(static_cast<std::int16_t>(value));
    case DataType::kInt32:
      return store(static_cast<std::int32_t>(value));
    case DataType::kInt64:
      return store(static_cast<std::int64_t>(value));
    case DataType::kFloat16:
      return store(float_to_float16(static_cast<float>(value)));
    case DataType::kBfloat16:
      return store(float_to_bfloat16(static_cast<float>(value)));
    case DataType::kFloat32:
      return store(static_cast<float>(value));
    case DataType::kFloat64:
      return store(value);
    case DataType::kBool:
      return store(static_cast<std::uint8_t>(value != 0));
    case DataType::kComplex64: {
      const float parts[2] = {static_cast<float>(value), static_cast<float>(-value)};
      std::memcpy(at + i * 8, parts, 8);
      return;
    }
    case DataType::kComplex128: {
      const double parts[2] = {value, -value};
      std::memcpy(at + i * 16, parts, 16);
      return;
    }
  }
}

double combined(ReduceOp op, DataType dtype, double a, double b) {
  if (dtype == DataType::kBool) {
    const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
    return any ? (a != 0 || b != 0) : (a != 0 && b != 0);
  }
  if (op == ReduceOp::kSum) return a + b;
  if (op == ReduceOp::kProduct) return a * b;
  return op == ReduceOp::kMin ? std::min(a, b) : std::max(a, b);
}

// What `members` give for element i; those in `joined` give zeros.
double expected_of(ReduceOp op, DataType dtype, const std::vector<Rank>& members, std::size_t i,
                   const std::vector<Rank>& joined = {}) {
  const auto given = [&](Rank rank) {
    const bool gone = std::find(joined.begin(), joined.end(), rank) != joined.end();
    return gone ? 0.0 : value_of(rank, i);
  };
  double result = given(members[0]);
  for (std::size_t m = 1; m < members.size(); ++m) {
    result = combined(op, dtype, result, given(members[m]));
  }
  return result;
}

Bytes input_of(DataType dtype, Rank rank, std::size_t count, std::size_t first = 0) {
  Bytes bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) put(dtype, bytes.data(), i, value_of(rank, first + i));
  return bytes;
}

Bytes expected_bytes(ReduceOp op, DataType dtype, const std::vector<Rank>& members,
                     std::size_t count, std::size_t first = 0,
                     const std::vector<Rank>& joined = {}) {
  Bytes bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    put(dtype, bytes.data(), i, expected_of(op, dtype, members, first + i, joined));
  }
  return bytes;
}

// A work whose allocated outputs are kept.
struct Case {
  Work work;
  std::vector<Bytes> outputs;

  void use_allocate() {
    outputs.resize(work.tensors.size());
    for (std::size_t t = 0; t < work.tensors.size(); ++t) {
      work.tensors[t].allocate = [this, t](const Shape&, std::size_t bytes) {
        outputs[t].resize(bytes);
        return static_cast<void*>(outputs[t].data());
      };
    }
  }
};

Work new_work(Collective kind, DataType dtype, std::uint64_t sequence,
              const std::vector<Rank>& members) {
  Work work;
  work.kind = kind;
  work.dtype = dtype;
  work.sequence = sequence;
  work.members = &members;
  return work;
}

Shape vector_shape(std::size_t count) { return {static_cast<std::int64_t>(count)}; }

std::string failed_on(Rank rank, const Status& status) {
  return "rank " + std::to_string(rank) + ": " + status.text();
}

// Allreduce of fused tensors of the given lengths on all ranks; how many ranks were right.
int allreduce_right(World& world, const std::vector<Rank>& members, DataType dtype, ReduceOp op,
                    const std::vector<std::size_t>& lengths, bool in_place,
                    std::uint64_t sequence) {
  std::atomic<int> right{0};
  world.run(members, [&](Rank rank) {
    Work work = new_work(Collective::kAllreduce, dtype, sequence, members);
    work.op = op;
    std::vector<Bytes> inputs, outputs;
    std::size_t first = 0;
    for (const std::size_t length : lengths) {
      inputs.push_back(input_of(dtype, rank, length, first));
      outputs.push_back(Bytes(length * size_of(dtype)));
      first += length;
    }
    const std::vector<Bytes> before = inputs;
    for (std::size_t t = 0; t < lengths.size(); ++t) {
      WorkTensor tensor;
      tensor.input = inputs[t].data();
      tensor.output = in_place ? inputs[t].data() : outputs[t].data();
      tensor.shape = vector_shape(lengths[t]);
      work.tensors.push_back(std::move(tensor));
    }
    Status status = world.backend(rank).execute(work);
    bool ok = status.is_ok() && (in_place || inputs == before);
    first = 0;
    for (std::size_t t = 0; t < lengths.size(); ++t) {
      const Bytes expected = expected_bytes(op, dtype, members, lengths[t], first);
      ok &= (in_place ? inputs[t] : outputs[t]) == expected;
      first += lengths[t];
    }
    if (ok) right.fetch_add(1);
  });
  return right.load();
}

}  // namespace

TEST_CASE("allreduce gives the same right result on every layout, for every dtype and op") {
  for (const auto& hosts : layouts()) {
    World world(hosts);
    const std::vector<Rank> members = world.all();
    std::uint64_t sequence = 0;
    for (int d = 0; d < kDataTypeCount; ++d) {
      const auto dtype = static_cast<DataType>(d);
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        if (!supports(op, dtype)) continue;
        for (const std::size_t count : {1, 77, 3001}) {
          const bool in_place = count == 77;
          const int right =
              allreduce_right(world, members, dtype, op, {count}, in_place, ++sequence);
          CHECK_MESSAGE(right == world.size(), name_of_layout(hosts), " ", name_of(dtype), " ",
                        name_of(op), " ", count, ": right on ", right, " ranks");
        }
      }
    }
  }
}

TEST_CASE("allreduce of large and of fused tensors, empty ones among them") {
  const std::vector<std::vector<std::size_t>> fused{{0},
                                                    {},
                                                    {40001},
                                                    {0, 1, 0, 2, 3, 0},
                                                    {5000, 1, 0, 17, 12345, 64},
                                                    std::vector<std::size_t>(200, 3)};
  for (const auto& hosts : layouts()) {
    World world(hosts);
    const std::vector<Rank> members = world.all();
    std::uint64_t sequence = 0;
    for (const auto& lengths : fused) {
      for (const DataType dtype : {DataType::kFloat32, DataType::kInt8, DataType::kFloat16}) {
        for (const bool in_place : {false, true}) {
          const int right =
              allreduce_right(world, members, dtype, ReduceOp::kSum, lengths, in_place, ++sequence);
          CHECK_MESSAGE(right == world.size(), name_of_layout(hosts), ", ", lengths.size(),
                        " tensors: right on ", right, " ranks");
        }
      }
    }
  }
}

TEST_CASE("over sockets ranks sleep in poll and get the same results") {
  for (const auto& hosts : layouts()) {
    if (hosts.size() == 1) continue;
    World world(hosts, World::small_config(), std::chrono::nanoseconds(0),
                hvd::testing::ChannelKind::kSocket);
    const std::vector<Rank> members = world.all();
    std::uint64_t sequence = 0;
    for (const std::size_t count : {100, 100, 300000}) {
      const int right = allreduce_right(world, members, DataType::kFloat32, ReduceOp::kSum,
                                        {count, 3, count}, false, ++sequence);
      CHECK_MESSAGE(right == world.size(), name_of_layout(hosts), " ", count);
    }
  }
}

TEST_CASE("factors are applied once each, whatever the layout") {
  for (const auto& hosts : layouts()) {
    World world(hosts);
    const std::vector<Rank> members = world.all();
    std::uint64_t sequence = 0;
    for (const DataType dtype :
         {DataType::kFloat32, DataType::kInt64, DataType::kBfloat16, DataType::kComplex64}) {
      for (const std::size_t count : {3, 50000}) {
        ++sequence;
        std::atomic<int> right{0};
        world.run(members, [&](Rank rank) {
          Work work = new_work(Collective::kAllreduce, dtype, sequence, members);
          work.prescale = 2.0;
          work.postscale = 0.5;
          Bytes input = input_of(dtype, rank, count), output(input.size());
          WorkTensor tensor;
          tensor.input = input.data();
          tensor.output = output.data();
          tensor.shape = vector_shape(count);
          work.tensors.push_back(tensor);
          Status status = world.backend(rank).execute(work);
          if (status.is_ok() && output == expected_bytes(ReduceOp::kSum, dtype, members, count)) {
            right.fetch_add(1);
          }
        });
        CHECK_MESSAGE(right == world.size(), name_of_layout(hosts), " ", name_of(dtype), " ",
                      count);
      }
    }
  }
}

TEST_CASE("joined ranks give zeros and get nothing") {
  for (const auto& hosts : layouts()) {
    World world(hosts);
    const std::vector<Rank> members = world.all();
    std::uint64_t sequence = 0;
    for (Rank gone = 0; gone < world.size(); ++gone) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin}) {
        for (const std::size_t count : {5, 30000}) {
          ++sequence;
          std::atomic<int> right{0};
          world.run(members, [&](Rank rank) {
            Work work = new_work(Collective::kAllreduce, DataType::kInt32, sequence, members);
            work.op = op;
            Bytes input = input_of(work.dtype, rank, count), output(input.size());
            WorkTensor tensor;
            tensor.shape = vector_shape(count);
            if (rank != gone) {
              tensor.input = input.data();
              tensor.output = output.data();
            }
            work.tensors.push_back(tensor);
            Status status = world.backend(rank).execute(work);
            const Bytes expected = expected_bytes(op, work.dtype, members, count, 0, {gone});
            if (status.is_ok() && (rank == gone || output == expected)) right.fetch_add(1);
          });
          CHECK_MESSAGE(right == world.size(), name_of_layout(hosts), " without ", gone);
        }
      }
    }
  }
}

TEST_CASE("allgather concatenates uneven rows of fused tensors in rank order") {
  for (const auto& hosts : layouts()) {
    World world(hosts);
    const std::vector<Rank> members = world.all();
    const auto rows_of = [](Rank rank, std::size_t tensor, std::size_t scale) {
      return static_cast<std::size_t>((rank + tensor) % 3) * scale;
    };
    std::uint64_t sequence = 0;
    for (const std::size_t scale : {0, 1, 700}) {
      for (const std::size_t tensors : {1, 4}) {
        ++sequence;
        std::atomic<int> right{0};
        world.run(members, [&](Rank rank) {
          Case c;
          c.work = new_work(Collective::kAllgather, DataType::kInt16, sequence, members);
          std::vector<Bytes> inputs;
          for (std::size_t t = 0; t < tensors; ++t) {
            inputs.push_back(input_of(c.work.dtype, rank, rows_of(rank, t, scale) * 5, t));
            WorkTensor tensor;
            tensor.input = inputs.back().data();
            tensor.shape = {static_cast<std::int64_t>(rows_of(rank, t, scale)), 5};
            c.work.tensors.push_back(tensor);
          }
          c.use_allocate();
          Status status = world.backend(rank).execute(c.work);
          bool ok = status.is_ok();
          for (std::size_t t = 0; t < tensors; ++t) {
            Bytes expected;
            for (const Rank other : members) {
              const Bytes rows = input_of(c.work.dtype, other, rows_of(other, t, scale) * 5, t);
              expected.insert(expected.end(), rows.begin(), rows.end());
            }
            ok &= c.outputs[t] == expected;
            ok &= c.work.tensors[t].output_shape ==
                  Shape{static_cast<std::int64_t>(expected.size() / 10), 5};
          }
          if (ok) right.fetch_add(1);
          CHECK_MESSAGE(ok, failed_on(rank, status));
        });
        CHECK_MESSAGE(right == world.size(), name_of_layout(hosts), " scale ", scale);
      }
    }
  }
}

TEST_CASE("broadcast brings the root's values to everybody, in place and out of place") {
  for (const auto& hosts : layouts()) {
    World world(hosts);
    const std::vector<Rank> members = world.all();
    std::uint64_t sequence = 0;
    for (Rank root = 0; root < world.size(); ++root) {
      for (const std::size_t count : {0, 1, 3000, 40000}) {
        const bool in_place = count != 3000;
        ++sequence;
        std::atomic<int> right{0};
        world.run(members, [&](Rank rank) {
          Work work = new_work(Collective::kBroadcast, DataType::kFloat64, sequence, members);
          work.root = root;
          Bytes input = input_of(work.dtype, rank, count), output(input.size());
          WorkTensor tensor;
          tensor.input = input.data();
          tensor.output = in_place ? input.data() : output.data();
          tensor.shape = vector_shape(count);
          work.tensors.push_back(tensor);
          Status status = world.backend(rank).execute(work);
          const Bytes expected = input_of(work.dtype, root, count);
          if (status.is_ok() && (in_place ? input : output) == expected) right.fetch_add(1);
        });
        CHECK_MESSAGE(right == world.size(), name_of_layout(hosts), " root ", root, " count ",
                      count);
      }
    }
  }
}

TEST_CASE("alltoall delivers rows by the senders' splits, zero splits among them") {
  for (const auto& hosts : layouts()) {
    World world(hosts);
    const std::vector<Rank> members = world.all();
    const auto split = [](Rank from, Rank to, std::int64_t scale) {
      return (from * 2 + to) % 4 * scale;
    };
    std::uint64_t sequence = 0;
    for (const std::int64_t scale : {0, 1, 900}) {
      ++sequence;
      std::atomic<int> right{0};
      world.run(members, [&](Rank rank) {
        Case c;
        c.work = new_work(Collective::kAlltoall, DataType::kInt32, sequence, members);
        const auto input_for = [&](Rank from) {
          std::int64_t rows = 0;
          for (const Rank to : members) rows += split(from, to, scale);
          return input_of(c.work.dtype, from, rows * 3);
        };
        const Bytes input = input_for(rank);
        WorkTensor tensor;
        tensor.input = input.data();
        tensor.shape = {static_cast<std::int64_t>(input.size() / 12), 3};
        for (const Rank to : members) tensor.splits.push_back(split(rank, to, scale));
        c.work.tensors.push_back(tensor);
        c.use_allocate();
        Status status = world.backend(rank).execute(c.work);
        Bytes expected;
        std::vector<std::int64_t> received;
        for (const Rank from : members) {
          const Bytes theirs = input_for(from);
          std::size_t begin = 0;
          for (Rank to = 0; to < rank; ++to) begin += split(from, to, scale) * 12;
          const std::size_t bytes = split(from, rank, scale) * 12;
          expected.insert(expected.end(), theirs.begin() + begin, theirs.begin() + begin + bytes);
          received.push_back(split(from, rank, scale));
        }
        const WorkTensor& done = c.work.tensors[0];
        if (status.is_ok() && c.outputs[0] == expected && done.received_splits == received) {
          right.fetch_add(1);
        }
      });
      CHECK_MESSAGE(right == world.size(), name_of_layout(hosts), " scale ", scale);
    }
  }
}

TEST_CASE("reducescatter gives the first ranks one more row and equals a slice of allreduce") {
  for (const auto& hosts : layouts()) {
    World world(hosts);
    const std::vector<Rank> members = world.all();
    std::uint64_t sequence = 0;
    for (const std::int64_t rows : {0, 1, 5, 4001}) {
      ++sequence;
      std::atomic<int> right{0};
      world.run(members, [&](Rank rank) {
        Case c;
        c.work = new_work(Collective::kReducescatter, DataType::kFloat32, sequence, members);
        c.work.prescale = 2.0;
        c.work.postscale = 0.5;
        std::vector<Bytes> inputs;
        for (std::size_t t = 0; t < 3; ++t) {
          WorkTensor tensor;
          tensor.shape = {rows + static_cast<std::int64_t>(t), 2};
          inputs.push_back(input_of(c.work.dtype, rank, element_count(tensor.shape), t));
          tensor.input = inputs.back().data();
          c.work.tensors.push_back(tensor);
        }
        c.use_allocate();
        Status status = world.backend(rank).execute(c.work);
        bool ok = status.is_ok();
        for (std::size_t t = 0; t < 3; ++t) {
          const std::int64_t all = rows + static_cast<std::int64_t>(t), size = world.size();
          const std::int64_t begin = rank * (all / size) + std::min<std::int64_t>(rank, all % size);
          const std::int64_t count = all / size + (rank < all % size ? 1 : 0);
          ok &= c.outputs[t] ==
                expected_bytes(ReduceOp::kSum, c.work.dtype, members, count * 2, t + begin * 2);
          ok &= c.work.tensors[t].output_shape == Shape{count, 2};
        }
        if (ok) right.fetch_add(1);
      });
      CHECK_MESSAGE(right == world.size(), name_of_layout(hosts), " rows ", rows);
    }
  }
}

TEST_CASE("a random sequence of works over overlapping process sets never blocks or mixes up") {
  const std::vector<Hosts> worlds{{{0, 1, 2, 3}}, {{0, 1}, {2, 3}}};
  for (const auto& hosts : worlds) {
    for (const std::chrono::nanoseconds spin :
         {std::chrono::nanoseconds(0), std::chrono::nanoseconds(20000)}) {
      World world(hosts, World::small_config(), spin);
      const std::vector<std::vector<Rank>> sets{{0, 1, 2, 3}, {0, 1}, {1, 2},
                                                {0, 2, 3},    {3},    {1, 3}};
      struct Step {
        std::size_t set;
        std::size_t count;
        Collective kind;
      };
      std::mt19937_64 random(11);
      std::vector<Step> steps;
      for (int i = 0; i < 300; ++i) {
        const std::size_t counts[] = {1, 100, 2500, 20000};
        const Collective kinds[] = {Collective::kAllreduce, Collective::kAllreduce,
                                    Collective::kBroadcast, Collective::kAllgather};
        steps.push_back({random() % sets.size(), counts[random() % 4], kinds[random() % 4]});
      }
      std::atomic<int> wrong{0};
      world.run(world.all(), [&](Rank rank) {
        for (std::size_t s = 0; s < steps.size(); ++s) {
          const std::vector<Rank>& members = sets[steps[s].set];
          if (std::find(members.begin(), members.end(), rank) == members.end()) continue;
          Case c;
          c.work = new_work(steps[s].kind, DataType::kFloat32, s + 1, members);
          c.work.process_set = static_cast<ProcessSetId>(steps[s].set);
          c.work.root = members.back();
          Bytes input = input_of(c.work.dtype, rank, steps[s].count, s), output(input.size());
          WorkTensor tensor;
          tensor.input = input.data();
          tensor.output = output.data();
          tensor.shape = vector_shape(steps[s].count);
          c.work.tensors.push_back(tensor);
          if (steps[s].kind == Collective::kAllgather) c.use_allocate();
          Status status = world.backend(rank).execute(c.work);
          Bytes expected;
          if (steps[s].kind == Collective::kAllreduce) {
            expected = expected_bytes(ReduceOp::kSum, c.work.dtype, members, steps[s].count, s);
          } else if (steps[s].kind == Collective::kBroadcast) {
            expected = input_of(c.work.dtype, members.back(), steps[s].count, s);
          } else {
            for (const Rank other : members) {
              const Bytes rows = input_of(c.work.dtype, other, steps[s].count, s);
              expected.insert(expected.end(), rows.begin(), rows.end());
            }
            output = c.outputs[0];
          }
          if (!status.is_ok() || output != expected) wrong.fetch_add(1);
        }
      });
      CHECK(wrong.load() == 0);
    }
  }
}
