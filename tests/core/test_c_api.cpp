// The C ABI: what it refuses, how it reports, and who gets which memory.
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "c_api/c_api.h"
#include "c_api/call_checks.h"
#include "c_api/process_engine.h"
#include "engine_world.h"
#include "testing.h"

namespace hvd::test {

namespace {

// One rank, whose engine is that of the process as long as this lives.
class ProcessOfOne {
 public:
  ProcessOfOne() : world_({1}) {
    set_process_engine(std::shared_ptr<Engine>(&world_.engine(0), [](Engine*) {}));
  }
  ~ProcessOfOne() { set_process_engine(nullptr); }

 private:
  EngineWorld world_;
};

struct Call {
  explicit Call(Collective kind, std::vector<std::int64_t> dimensions = {4})
      : shape(std::move(dimensions)), input(64, 1.5f), output(64) {
    tensor.name = "t";
    tensor.input = input.data();
    tensor.shape = shape.data();
    tensor.dimensions = static_cast<std::int32_t>(shape.size());
    tensor.dtype = static_cast<std::int32_t>(DataType::kFloat32);
    call.collective = static_cast<std::int32_t>(kind);
    call.op = static_cast<std::int32_t>(ReduceOp::kSum);
    call.prescale = call.postscale = 1;
    call.tensors = &tensor;
    call.tensor_count = 1;
    call.cacheable = 1;
    call.user = this;
    call.allocate = [](void* user, std::int32_t, const std::int64_t* rows, std::int32_t,
                       std::size_t) -> void* {
      auto& self = *static_cast<Call*>(user);
      self.allocated_rows = rows[0];
      return self.output.data();
    };
  }

  std::vector<std::int64_t> shape;
  std::vector<float> input;
  std::vector<float> output;
  hvd_tensor tensor{};
  hvd_call call{};
  std::int64_t allocated_rows = -1;
};

struct Outcome {
  int code = -1;
  std::string text;
  std::vector<std::int64_t> received_splits;
  std::int64_t value = 0;
  std::atomic<int> calls{0};

  static void take(void* user, const hvd_outcome* outcome) {
    auto& self = *static_cast<Outcome*>(user);
    self.code = outcome->code;
    self.text = outcome->text;
    self.received_splits.assign(outcome->received_splits,
                                outcome->received_splits + outcome->received_split_count);
    self.value = outcome->value;
    self.calls.fetch_add(1);
    self.calls.notify_all();
  }
};

int submit(const hvd_call& call, hvd_operation** operation, std::string& error) {
  std::array<char, 512> text{};
  const int code = c_api()->submit(&call, operation, text.data(), text.size());
  error = text.data();
  return code;
}

// Submits, waits, returns the outcome's code.
int run(Call& call, Outcome& outcome) {
  hvd_operation* operation = nullptr;
  std::string error;
  const int code = submit(call.call, &operation, error);
  if (code != HVD_OK) return code;
  c_api()->wait(operation, &Outcome::take, &outcome);
  return outcome.code;
}

}  // namespace

TEST_CASE("without an engine every call says so") {
  Call call(Collective::kAllreduce);
  std::string error;
  CHECK(submit(call.call, nullptr, error) == HVD_NOT_INITIALIZED);
  CHECK(error == "Horovod has not been initialized; use hvd.init().");
  CHECK(c_api()->identity(HVD_RANK) == -1);
  std::int32_t set_rank = 0;
  std::int32_t size = 0;
  CHECK(c_api()->process_set(0, &set_rank, &size) == HVD_NOT_INITIALIZED);
}

TEST_CASE("an error text is cut to the room that there is") {
  Call call(Collective::kAllreduce);
  std::array<char, 8> text{};
  CHECK(c_api()->submit(&call.call, nullptr, text.data(), text.size()) == HVD_NOT_INITIALIZED);
  CHECK(std::string(text.data()) == "Horovod");
}

TEST_CASE("a caller that waits gets the result in its own memory") {
  const ProcessOfOne process;
  Call call(Collective::kAllreduce);
  call.tensor.output = call.output.data();
  call.call.op = static_cast<std::int32_t>(ReduceOp::kAverage);
  call.call.prescale = 2;
  Outcome outcome;
  CHECK(run(call, outcome) == HVD_OK);
  CHECK(call.output[3] == 3.0f);
  CHECK(call.allocated_rows == -1);
}

TEST_CASE("outputs of unknown size go where the caller says") {
  const ProcessOfOne process;
  for (const Collective kind :
       {Collective::kAllgather, Collective::kAlltoall, Collective::kReducescatter}) {
    Call call(kind, {5, 2});
    Outcome outcome;
    CHECK(run(call, outcome) == HVD_OK);
    CHECK(call.allocated_rows == 5);
    CHECK(call.output[9] == 1.5f);
    if (kind == Collective::kAlltoall) {
      CHECK(outcome.received_splits == std::vector<std::int64_t>{5});
    }
  }
}

TEST_CASE("no memory for an output is an error, not a crash") {
  const ProcessOfOne process;
  Call call(Collective::kAllgather);
  call.call.allocate = [](void*, std::int32_t, const std::int64_t*, std::int32_t,
                          std::size_t) -> void* { return nullptr; };
  Outcome outcome;
  CHECK(run(call, outcome) == HVD_ABORTED);
  CHECK(!outcome.text.empty());
}

TEST_CASE("a caller that does not wait is told once") {
  const ProcessOfOne process;
  Outcome outcome;
  Call call(Collective::kBroadcast);
  call.tensor.output = call.output.data();
  call.call.root = 0;
  call.call.user = &outcome;
  call.call.allocate = nullptr;
  call.call.done = &Outcome::take;
  std::string error;
  REQUIRE(submit(call.call, nullptr, error) == HVD_OK);
  outcome.calls.wait(0);
  CHECK(outcome.code == HVD_OK);
  CHECK(call.output[0] == 1.5f);
  // An ordinary operation after it finds everything in order.
  Call next(Collective::kAllreduce);
  next.tensor.output = next.output.data();
  Outcome second;
  CHECK(run(next, second) == HVD_OK);
  CHECK(outcome.calls.load() == 1);
}

TEST_CASE("a join returns the rank that joined last") {
  const ProcessOfOne process;
  Call call(Collective::kJoin);
  call.call.tensors = nullptr;
  call.call.tensor_count = 0;
  Outcome outcome;
  CHECK(run(call, outcome) == HVD_OK);
  CHECK(outcome.value == 0);
}

TEST_CASE("a name in flight twice is refused and the first one goes on") {
  EngineWorld world({2});
  set_process_engine(std::shared_ptr<Engine>(&world.engine(0), [](Engine*) {}));
  Call first(Collective::kAllreduce);
  first.tensor.output = first.output.data();
  Call second(Collective::kAllreduce);
  second.tensor.output = second.output.data();
  hvd_operation* operation = nullptr;
  std::string error;
  REQUIRE(submit(first.call, &operation, error) == HVD_OK);
  hvd_operation* none = nullptr;
  CHECK(submit(second.call, &none, error) == HVD_INVALID_ARGUMENT);
  CHECK(error.find("same name as another tensor") != std::string::npos);
  std::vector<float> input(4, 1.0f);
  std::vector<float> output(4);
  const auto other = world.allreduce(1, EngineWorld::allreduce_request("t", 4), input, output);
  Outcome outcome;
  c_api()->wait(operation, &Outcome::take, &outcome);
  CHECK(outcome.code == HVD_OK);
  CHECK(first.output[0] == 2.5f);
  while (!world.engine(1).wait(*other)) {
  }
  set_process_engine(nullptr);
}

TEST_CASE("who this process is, and its place in a set") {
  const ProcessOfOne process;
  CHECK(c_api()->identity(HVD_RANK) == 0);
  CHECK(c_api()->identity(HVD_SIZE) == 1);
  CHECK(c_api()->identity(HVD_LOCAL_RANK) == 0);
  CHECK(c_api()->identity(HVD_LOCAL_SIZE) == 1);
  CHECK(c_api()->identity(99) == -1);
  std::int32_t set_rank = -1;
  std::int32_t size = -1;
  CHECK(c_api()->process_set(0, &set_rank, &size) == HVD_OK);
  CHECK(set_rank == 0);
  CHECK(size == 1);
  CHECK(c_api()->process_set(7, &set_rank, &size) == HVD_INVALID_ARGUMENT);
}

TEST_CASE("what the checks refuse") {
  const std::vector<Rank> members{0, 2};
  const auto text_of = [&](const Call& call, const std::vector<Rank>* of, Rank rank) {
    const CallFault fault = check_call(call.call, of, rank);
    return std::to_string(fault.code) + " " + fault.text;
  };
  Call allreduce(Collective::kAllreduce);
  CHECK(check_call(allreduce.call, &members, 2).code == HVD_OK);
  CHECK(text_of(allreduce, nullptr, 0) ==
        "1 Allreduce: Process set provided does not exist, or has not been registered.");
  CHECK(text_of(allreduce, &members, 1) ==
        "1 Allreduce: Rank 1 is not a member of the provided process set.");

  allreduce.call.op = static_cast<std::int32_t>(ReduceOp::kAdasum);
  CHECK(check_call(allreduce.call, &members, 0).code == HVD_UNSUPPORTED);
  allreduce.call.op = static_cast<std::int32_t>(ReduceOp::kMax);
  allreduce.tensor.dtype = static_cast<std::int32_t>(DataType::kComplex64);
  CHECK(text_of(allreduce, &members, 0).find("Max is not defined for complex64") !=
        std::string::npos);

  Call scatter(Collective::kReducescatter);
  scatter.call.op = static_cast<std::int32_t>(ReduceOp::kMin);
  CHECK(text_of(scatter, &members, 0) ==
        "5 Reducescatter currently only supports AVERAGE and SUM.");

  for (const Collective kind :
       {Collective::kAllgather, Collective::kAlltoall, Collective::kReducescatter}) {
    const Call scalar(kind, {});
    CHECK(text_of(scalar, &members, 0).find("rank-zero tensor") != std::string::npos);
  }

  Call broadcast(Collective::kBroadcast);
  broadcast.call.root = 1;
  CHECK(text_of(broadcast, &members, 0) ==
        "1 broadcast received invalid root rank 1 for provided process set");

  Call alltoall(Collective::kAlltoall, {5});
  CHECK(text_of(alltoall, &members, 0).find("not an even multiple") != std::string::npos);
  const auto with_splits = [&](std::vector<std::int64_t> splits) {
    alltoall.call.splits = splits.data();
    alltoall.call.split_count = static_cast<std::int32_t>(splits.size());
    return text_of(alltoall, &members, 0);
  };
  CHECK(with_splits({1, 4}) == "0 ");
  CHECK(with_splits({5}).find("Number of entries") != std::string::npos);
  CHECK(with_splits({-1, 2}).find("not negative") != std::string::npos);
  CHECK(with_splits({3, 3}).find("greater than the first dimension") != std::string::npos);
}

}  // namespace hvd::test
