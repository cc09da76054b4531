// Steps, stragglers, and the report of a stall: pure parts of what explains a job.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "engine/flight_dumps.h"
#include "engine/stack_source.h"
#include "engine/stall_report.h"
#include "engine/step_counter.h"
#include "engine/stragglers.h"
#include "engine/timeline_control.h"
#include "testing.h"

using namespace hvd;
using hvd::testing::Approx;
using namespace std::chrono_literals;

namespace {

const std::chrono::steady_clock::time_point kStart{1000s};
std::atomic<int> handler_file{-1};

Topology topology(Rank size) {
  Topology topology;
  topology.size = size;
  for (Rank rank = 0; rank < size; ++rank) {
    topology.hosts.push_back({rank});
    topology.host_names.push_back("host" + std::to_string(rank));
  }
  return topology;
}

StalledOperation stalled(std::string name, std::vector<Rank> announced, std::vector<Rank> missing) {
  return {0, std::move(name), Collective::kAllreduce, RankSet::of(announced), RankSet::of(missing)};
}

ResponseItem in_full(const std::string& name) {
  ResponseItem item;
  item.request.emplace();
  item.request->name = name;
  return item;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A job of two ranks whose steps of 100 ms have one blocking operation, for which rank 1 is `late`.
std::optional<Stragglers::Straggler> run_steps(Stragglers& stragglers, int steps,
                                               std::chrono::nanoseconds late, bool blocked) {
  auto now = kStart;
  for (int step = 0; step < steps; ++step) {
    stragglers.step(now);
    const auto since = blocked ? std::optional(now + 10ms) : std::nullopt;
    stragglers.completed(RankSet(1), now + 10ms, since, now + 10ms + late);
    now += 100ms;
  }
  return stragglers.take();
}

}  // namespace

TEST_CASE("a step begins when a tensor comes again") {
  StepCounter counter;
  std::string begins;
  for (const CacheId id : {5u, 2u, 700u, 2u, 5u, 700u, 5u})
    begins += counter.executed({id, {}}) ? 'B' : '.';
  CHECK(begins == "B..B..B");
  CHECK(counter.steps() == 3);
  begins.clear();
  for (const char* name : {"a", "b", "a", "b"})
    begins += counter.executed(in_full(name)) ? 'B' : '.';
  CHECK(begins == "..B.");
  // One whose shape changes gets another id each time.
  begins.clear();
  for (const CacheId id : {800u, 801u}) {
    ResponseItem item = in_full("c");
    item.id = id;
    begins += counter.executed(item) ? 'B' : '.';
  }
  CHECK(begins == ".B");
  CHECK(counter.wait(4, 0s));
  CHECK_FALSE(counter.wait(9, 1ms));
  counter.end();
  CHECK_FALSE(counter.wait(4, 0s));
}

TEST_CASE("a rank for which others are blocked is named once, with its share of the time") {
  Stragglers stragglers(0.1);
  const auto found = run_steps(stragglers, 60, 20ms, true);
  REQUIRE(found.has_value());
  CHECK(found->ranks == RankSet(1));
  CHECK(found->share == Approx(0.2).epsilon(0.06));
  CHECK(found->seconds_per_step == Approx(0.02).epsilon(0.06));
  CHECK_FALSE(run_steps(stragglers, 100, 20ms, true).has_value());
  CHECK(stragglers.seconds().at(1) == Approx(0.4).epsilon(0.06));
  const std::string text = straggler_text({RankSet(1), 0.2, 0.02}, topology(2));
  CHECK(has(text, "Rank 1 on host host1 is slow: the others waited for it for 20 % of the time"));
  CHECK(has(text, "20.0 ms in each step"));
}

TEST_CASE(
    "lateness that nobody is blocked by counts once per step, however many tensors are late") {
  Stragglers stragglers(0.1);
  auto now = kStart;
  for (int step = 0; step < 60; ++step, now += 100ms) {
    stragglers.step(now);
    for (int tensor = 0; tensor < 50; ++tensor) {
      const auto there = now + tensor * 1ms;
      stragglers.completed(RankSet(1), there, {}, there + 5ms);
    }
  }
  CHECK_FALSE(stragglers.take().has_value());  // 5 ms of 100 ms
  CHECK(stragglers.seconds().at(1) == Approx(20 * 0.005).epsilon(0.06));
}

TEST_CASE("one long pause is no straggler, nor is a small share, nor any with the limit off") {
  Stragglers once(0.1);
  run_steps(once, 22, 0ms, true);
  once.completed(RankSet(1), kStart + 2200ms, kStart + 2200ms, kStart + 9s);
  CHECK_FALSE(run_steps(once, 60, 1ms, true).has_value());
  Stragglers small(0.1);
  CHECK_FALSE(run_steps(small, 100, 5ms, true).has_value());
  Stragglers short_steps(0.1);
  for (auto now = kStart; now < kStart + 5s; now += 1ms) {
    short_steps.step(now);
    short_steps.completed(RankSet(1), now, now, now + 500us);
  }
  CHECK_FALSE(short_steps.take().has_value());
  Stragglers off(0);
  CHECK_FALSE(run_steps(off, 100, 80ms, true).has_value());
}

TEST_CASE("names are alike when they differ at one end or in a counter") {
  CHECK(likeness("model/w", "model_1/w") > 0);
  CHECK(likeness("dense/kernel", "dense_12/kernel") > 0);
  CHECK(likeness("grad.w", "module.grad.w") > 0);
  CHECK(likeness("metric", "metric.val") > 0);
  CHECK(likeness("allreduce.noname.3", "allreduce.noname.4") > 0);
  CHECK(likeness("a.w", "b.w") == 0);
  CHECK(likeness("layers.0.w", "layers.1.w") == 0);
  CHECK(likeness("same", "same") == 0);
  CHECK(likeness("w", "weight") == 0);
  CHECK(likeness("", "x") == 0);
}

TEST_CASE("the report pairs names that may be the same tensor") {
  const std::vector<StalledOperation> both{stalled("model/w", {0}, {1}),
                                           stalled("model_1/w", {1}, {0})};
  const AnswerMessage answer{
      1, 1, {{0, "model_1/w", 60}}, {{0, "model_1/w", 60}}, "Thread x:\n  line\n"};
  const std::string text = stall_report_text("HEAD\n", both, {answer}, {}, topology(2));
  CHECK(text.starts_with(
      "HEAD\nWhat the missing ranks are doing:\nRank 1 on host host1 is alive. It is blocked in "
      "'model_1/w' (since 60.0 s). It has not submitted 'model/w'.\n"));
  CHECK(has(text, "'model_1/w' of rank 1 may be 'model/w' of rank 0.\n"));
  CHECK(has(text, "    Thread x:\n      line\n"));
}

TEST_CASE("the report tells other order, nothing submitted, and silence apart") {
  const std::vector<StalledOperation> both{stalled("a", {0}, {1}), stalled("b", {1}, {0})};
  CHECK(
      has(stall_report_text("", both, {{1, 1, {{0, "b", 9}}, {{0, "b", 9}}, ""}}, {}, topology(2)),
          "the ranks call blocking operations in different orders"));
  const std::vector<StalledOperation> one{stalled("a", {0}, {1, 2})};
  const std::string text =
      stall_report_text("", one, {{1, 1, {}, {}, ""}}, RankSet(2), topology(3));
  CHECK(
      has(text,
          "Rank 1 on host host1 is alive. It has not submitted 'a'.\n  It has nothing in flight"));
  CHECK(has(text, "Rank 2 on host host2 does not answer"));
}

TEST_CASE("an inquiry ends when all have answered, or when its time is over") {
  Inquiry inquiry;
  CHECK_FALSE(inquiry.take(kStart, topology(3)).has_value());
  const InquiryMessage question = inquiry.begin("HEAD\n", {stalled("a", {0}, {1, 2})}, kStart);
  CHECK(question.ranks == RankSet::of({1, 2}));
  inquiry.receive({question.number, 1, {}, {}, ""});
  inquiry.receive({question.number + 1, 2, {}, {}, ""});  // of another inquiry
  CHECK_FALSE(inquiry.take(kStart + 1s, topology(3)).has_value());
  CHECK(inquiry.deadline() == kStart + Inquiry::kTime);
  const auto late = inquiry.take(kStart + Inquiry::kTime, topology(3));
  REQUIRE(late.has_value());
  CHECK(has(*late, "Rank 2 on host host2 does not answer"));
  CHECK_FALSE(inquiry.deadline().has_value());
  const InquiryMessage second = inquiry.begin("", {stalled("a", {0}, {1})}, kStart);
  inquiry.receive({second.number, 1, {}, {}, ""});
  CHECK(inquiry.take(kStart, topology(3)).has_value());
}

TEST_CASE("without a thread of Python there are no stacks, and nobody waits for them") {
  StackSource source([] {});
  CHECK_FALSE(source.take(kStart).has_value());
  source.request(kStart);
  CHECK(source.deadline() == kStart);
  CHECK(source.take(kStart) == "");
  CHECK_FALSE(source.deadline().has_value());
}

TEST_CASE(
    "stacks come from the thread of Python, or from the signal's handler when it has no time") {
  int notified = 0;
  StackSource source([&] { ++notified; });
  const int file = ::memfd_create("stacks", 0);
  handler_file = file;
  std::signal(SIGRTMIN + 3, [](int) {
    [[maybe_unused]] const ssize_t written = ::write(handler_file, "from the handler", 16);
  });
  source.set_handler(SIGRTMIN + 3, Descriptor(file));
  std::atomic<int> requests{0};
  std::thread python([&] {
    while (source.next_request()) ++requests;
  });
  auto now = kStart;
  // The thread serves from its first wait on; until then an answer comes at once.
  while (source.request(now), source.take(now)) std::this_thread::yield();
  source.provide("from Python");
  CHECK(notified == 1);
  CHECK(source.take(now) == "from Python");
  source.request(now);
  CHECK_FALSE(source.take(now).has_value());
  CHECK(source.deadline() == now + StackSource::kPatience);
  CHECK(source.take(now + StackSource::kPatience) == "from the handler");
  source.request(now);
  CHECK(source.take(now + StackSource::kPatience) == "from the handler");  // the file was emptied
  source.end();
  python.join();
}

TEST_CASE("callers that are blocked are known until they leave") {
  BlockedCallers blocked;
  Handle handle(1);
  const auto operation = std::make_shared<Operation>();
  operation->request.name = "g";
  handle.operations.push_back(operation);
  blocked.enter(handle, kStart);
  blocked.enter(handle, kStart + 1s);  // known already
  REQUIRE(blocked.all().size() == 1);
  CHECK(blocked.all()[0].name == "g");
  CHECK(blocked.all()[0].since == kStart);
  blocked.leave(handle);
  CHECK(blocked.all().empty());
}

TEST_CASE("each rank has a file of its own for the timeline") {
  CHECK(timeline_path_of("/a/t.json", 0) == "/a/t.json");
  CHECK(timeline_path_of("/a/t.json", 12) == "/a/t.rank12.json");
  CHECK(timeline_path_of("/a.b/t", 1) == "/a.b/t.rank1");
  CHECK(timeline_path_of(".json", 1) == ".json.rank1");
}
