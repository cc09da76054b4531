// The fusion planner: what shares a response, in which order, within which bytes.
#include <limits>
#include <string>

#include "engine/fusion.h"
#include "negotiation_world.h"
#include "testing.h"

using namespace hvd;
using hvd::samples::allreduce;
using hvd::samples::make_request;

namespace {

// Requests with bytes and groups, planned; responses as "ab|c".
struct Plan {
  FusionOptions options{100, false};
  std::vector<Request> requests;
  std::vector<std::int64_t> bytes;
  std::vector<std::int32_t> groups;

  void add(Request request, std::int64_t size, std::int32_t group = -1) {
    requests.push_back(std::move(request));
    bytes.push_back(size);
    groups.push_back(group);
  }
  std::string text() const {
    std::vector<FusionItem> items;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      items.push_back({&requests[i], bytes[i], groups[i]});
    }
    std::string result;
    for (const auto& response : plan_fusion(items, options)) {
      if (!result.empty()) result += "|";
      for (const std::size_t index : response) result += requests[index].name;
    }
    return result;
  }
};

Request with_dtype(std::string name, DataType dtype) {
  Request r = allreduce(std::move(name));
  r.dtype = dtype;
  return r;
}

}  // namespace

TEST_CASE("equal tensors fuse up to the threshold, in order") {
  Plan plan;
  for (const char* name : {"a", "b", "c", "d"}) plan.add(allreduce(name), 40);
  CHECK(plan.text() == "ab|cd");
  plan.options.threshold_bytes = 120;
  CHECK(plan.text() == "abc|d");
  plan.options.threshold_bytes = 39;
  CHECK(plan.text() == "a|b|c|d");
}

TEST_CASE("a threshold of zero fuses nothing, not even empty tensors") {
  Plan plan;
  plan.options.threshold_bytes = 0;
  plan.add(allreduce("a"), 0);
  plan.add(allreduce("b"), 0);
  CHECK(plan.text() == "a|b");
}

TEST_CASE("look-ahead skips what does not match and keeps its order") {
  Plan plan;
  plan.add(with_dtype("a", DataType::kFloat32), 10);
  plan.add(with_dtype("x", DataType::kFloat64), 10);
  plan.add(with_dtype("b", DataType::kFloat32), 10);
  plan.add(with_dtype("y", DataType::kFloat64), 10);
  plan.add(with_dtype("c", DataType::kFloat32), 10);
  CHECK(plan.text() == "abc|xy");
}

TEST_CASE("skipped bytes count: look-ahead ends where fused and skipped exceed the threshold") {
  Plan plan;
  plan.add(with_dtype("a", DataType::kFloat32), 30);
  plan.add(with_dtype("x", DataType::kFloat64), 50);
  plan.add(with_dtype("b", DataType::kFloat32), 20);
  plan.add(with_dtype("c", DataType::kFloat32), 1);
  CHECK(plan.text() == "ab|x|c");
}

TEST_CASE("only tensors that are equal in everything that matters fuse") {
  Request other = allreduce("b");
  SUBCASE("kind") { other.kind = Collective::kReducescatter; }
  SUBCASE("process set") { other.process_set = 1; }
  SUBCASE("dtype") { other.dtype = DataType::kInt32; }
  SUBCASE("device") { other.device = 0; }
  SUBCASE("op") { other.op = ReduceOp::kMax; }
  SUBCASE("prescale") { other.prescale = 0.5; }
  SUBCASE("postscale") { other.postscale = 0.5; }
  Plan plan;
  plan.add(allreduce("a"), 1);
  plan.add(other, 1);
  CHECK(plan.text() == "a|b");
}

TEST_CASE("allreduce, reducescatter and allgather fuse; broadcast, alltoall and barrier do not") {
  for (const Collective kind :
       {Collective::kAllreduce, Collective::kAllgather, Collective::kBroadcast,
        Collective::kAlltoall, Collective::kReducescatter, Collective::kBarrier}) {
    CAPTURE(static_cast<int>(kind));
    Plan plan;
    plan.add(make_request(kind, "a"), 1);
    plan.add(make_request(kind, "b"), 1);
    CHECK(plan.text() == (is_fusible(kind) ? "ab" : "a|b"));
  }
}

TEST_CASE("a group stays in one response whatever the threshold") {
  Plan plan;
  plan.add(allreduce("a"), 90, 0);
  plan.add(allreduce("b"), 90, 0);
  plan.add(allreduce("c"), 90);
  CHECK(plan.text() == "ab|c");
  plan.options.threshold_bytes = 0;
  CHECK(plan.text() == "ab|c");
}

TEST_CASE("a group whose members can't fuse is split, and only there") {
  Plan plan;
  plan.options.threshold_bytes = 0;
  plan.add(with_dtype("a", DataType::kFloat32), 10, 3);
  plan.add(with_dtype("x", DataType::kFloat64), 10, 3);
  plan.add(with_dtype("b", DataType::kFloat32), 10, 3);
  CHECK(plan.text() == "ab|x");
}

TEST_CASE("groups fuse with other tensors unless group fusion is disabled") {
  Plan plan;
  plan.add(allreduce("a"), 10, 0);
  plan.add(allreduce("b"), 10, 0);
  plan.add(allreduce("c"), 10, 1);
  plan.add(allreduce("d"), 10);
  plan.add(allreduce("e"), 10);
  CHECK(plan.text() == "abcde");
  plan.options.disable_group_fusion = true;
  CHECK(plan.text() == "ab|c|de");
}

TEST_CASE("bytes are those that move, and saturate") {
  CHECK(fusion_bytes(allreduce("a", {2, 3}), 4) == 24);
  CHECK(fusion_bytes(allreduce("a", {}), 4) == 4);
  CHECK(fusion_bytes(allreduce("a", {5, 0}), 4) == 0);
  CHECK(fusion_bytes(make_request(Collective::kAllgather, "a", {2, 3}), 4) == 96);
  const std::int64_t huge = std::int64_t{1} << 40;
  CHECK(fusion_bytes(allreduce("a", {huge, huge}), 4) == std::numeric_limits<std::int64_t>::max());
  CHECK(fusion_bytes(allreduce("a", {huge, huge, 0}), 4) == 0);
}

TEST_CASE("every tensor is placed exactly once") {
  std::uint32_t seed = 1;
  const auto next = [&seed](std::uint32_t n) {
    return (seed = seed * 1664525 + 1013904223) / 7 % n;
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<Request> requests;
    std::vector<FusionItem> items;
    for (std::uint32_t i = next(30); i > 0; --i) {
      requests.push_back(with_dtype("t", next(2) == 0 ? DataType::kFloat32 : DataType::kInt8));
    }
    std::int32_t group = -1;
    for (const Request& r : requests) {
      if (next(3) == 0) group = next(2) == 0 ? -1 : static_cast<std::int32_t>(items.size());
      items.push_back({&r, next(50), group});
    }
    std::vector<int> placed(items.size(), 0);
    for (const auto& response : plan_fusion(items, {next(200), next(2) == 0})) {
      REQUIRE_FALSE(response.empty());
      for (const std::size_t index : response) ++placed[index];
    }
    for (const int count : placed) REQUIRE(count == 1);
  }
}
