// Stall reports: when, in what words, and the end of the job.
#include "engine/stall.h"
#include "negotiation_world.h"
#include "testing.h"

using namespace hvd;
using namespace hvd::samples;

namespace {

Config stalling(double warning, double shutdown) {
  Config config;
  config.stall_warning_seconds = warning;
  config.stall_shutdown_seconds = shutdown;
  return config;
}

}  // namespace

TEST_CASE("a stalled tensor is reported once, with the missing ranks") {
  Root root(4, stalling(60, 0));
  root.announce({0, 2}, allreduce("a"));
  root.announce({0, 1, 2}, allreduce("b"));
  CHECK(root.coordinator.next_deadline() == root.now + 60s);
  root.now += 59s;
  CHECK_FALSE(root.coordinator.take_stall_warning(root.now).has_value());
  root.now += 1s;
  CHECK(root.coordinator.take_stall_warning(root.now) ==
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of "
        "ranks "
        "and are waiting for remainder of ranks for more than 60 seconds. This may indicate that "
        "different ranks are trying to submit different tensors or that only subset of ranks is "
        "submitting tensors, which will cause deadlock. \nMissing ranks:\n1: [a]\n3: [a, b]\n");
  CHECK_FALSE(root.coordinator.take_stall_warning(root.now + 10min).has_value());
  CHECK_FALSE(root.coordinator.next_deadline().has_value());
  root.announce({1, 3}, allreduce("a"));
  root.announce({3}, allreduce("b"));
  CHECK(root.settle() == "execute a b");
}

TEST_CASE("reports are a warning time apart and repeat what is still stalled") {
  Root root(2, stalling(10, 0));
  root.announce({0}, allreduce("a"));
  root.now += 3s;
  root.announce({0}, allreduce("b"));
  root.now += 7s;
  CHECK(root.coordinator.take_stall_warning(root.now)->find("[a]\n") != std::string::npos);
  CHECK(root.coordinator.next_deadline() == root.now + 10s);
  root.now += 9s;
  CHECK_FALSE(root.coordinator.take_stall_warning(root.now).has_value());
  root.now += 1s;
  CHECK(root.coordinator.take_stall_warning(root.now)->find("1: [a, b]\n") != std::string::npos);
}

TEST_CASE("a tensor that stalls, executes and stalls again is reported again") {
  Root root(2, stalling(1, 0));
  for (int episode = 0; episode < 2; ++episode) {
    root.announce({0}, allreduce("a"));
    root.now += 2s;
    CHECK(root.coordinator.take_stall_warning(root.now).has_value());
    root.announce({1}, allreduce("a"));
    CHECK(root.settle() == "execute a");
  }
}

TEST_CASE("long lists are cut") {
  Root root(100, stalling(1, 0));
  for (int i = 0; i < 20; ++i)
    root.announce({0}, allreduce(std::string("t").append(std::to_string(i))));
  root.now += 1s;
  const std::string text = root.coordinator.take_stall_warning(root.now).value_or("");
  CHECK(text.find("1: [t0, t1, t2, t3, t4 ...]\n") != std::string::npos);
  CHECK(text.find("\n32: [") != std::string::npos);
  CHECK(text.find("\n33: [") == std::string::npos);
  CHECK(text.substr(text.size() - 5) == "\n...\n");
}

TEST_CASE("past the shutdown time the job ends and the culprits are marked") {
  Root root(3, stalling(1, 2.5));
  root.announce({0}, allreduce("a"));
  root.now += 1s;
  CHECK(root.coordinator.take_stall_warning(root.now).has_value());
  CHECK(root.coordinator.next_deadline() == root.now + 1500ms);
  root.announce({0, 1}, allreduce("b"));
  root.now += 1499ms;
  CHECK(root.take().empty());
  root.now += 1ms;
  CHECK(root.text_of_entries(root.take()) == "shutdown");
  CHECK(
      std::get<ShutdownEntry>(root.log.back()).text ==
      "One or more rank (marked by \"!\") is stalled for longer than 2.5 seconds. Will shutdown.\n"
      "Missing ranks:\n1!: [a]\n2!: [a, b]\n");
}

TEST_CASE("the stall check can be turned off") {
  Config config = stalling(1, 2);
  config.stall_check = false;
  Root root(2, config);
  root.announce({0}, allreduce("a"));
  CHECK_FALSE(root.coordinator.next_deadline().has_value());
  root.now += 1h;
  CHECK_FALSE(root.coordinator.take_stall_warning(root.now).has_value());
  CHECK(root.take().empty());
}

TEST_CASE("joined ranks are not missed, nor is a rank that waits in join") {
  Root root(3, stalling(1, 0));
  root.join({2});
  root.now += 1h;
  CHECK_FALSE(root.coordinator.take_stall_warning(root.now).has_value());
  root.announce({0}, allreduce("a"));
  root.now += 1s;
  const std::string text = root.coordinator.take_stall_warning(root.now).value_or("");
  CHECK(text.find("1: [a]\n") != std::string::npos);
  CHECK(text.find("2: ") == std::string::npos);
}
