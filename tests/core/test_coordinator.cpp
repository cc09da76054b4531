// The root: completeness, agreement, groups, flushing, process sets, shutdown.
#include "engine/coordinator.h"
#include "negotiation_world.h"
#include "testing.h"

using namespace hvd;
using namespace hvd::samples;

namespace {

Config with_threshold(std::int64_t bytes) {
  Config config;
  config.fusion_threshold_bytes = bytes;
  return config;
}

Request add_set(std::vector<Rank> ranks, std::string name = "add") {
  Request r = make_request(Collective::kAddProcessSet, std::move(name), {});
  r.ranks = std::move(ranks);
  r.cacheable = false;
  return r;
}

Request remove_set(ProcessSetId id) {
  Request r = make_request(Collective::kRemoveProcessSet, "remove", {});
  r.target_set = id;
  r.cacheable = false;
  return r;
}

}  // namespace

TEST_CASE("a tensor executes once all members have announced it, in any order") {
  Root root(3);
  root.announce({2}, allreduce("b"));
  root.announce({0}, allreduce("a"));
  root.announce({1}, allreduce("b"));
  CHECK(root.settle() == "");
  root.announce({0}, allreduce("b"));
  root.announce({1, 2}, allreduce("a"));
  CHECK(root.settle() == "execute b a");
  CHECK(root.settle() == "");
}

TEST_CASE("a cached tensor is announced and executed by its id alone") {
  Root root(2);
  root.announce({0, 1}, allreduce("a"));
  CHECK(root.settle() == "execute a");
  const auto id = root.replica.find(allreduce("a"));
  REQUIRE(id.has_value());
  root.announce({0}, *id);
  root.announce({1}, allreduce("a"));  // in full, though it has an id
  CHECK(root.settle() == "execute a");
  const auto& item = std::get<ExecuteEntry>(root.log.back()).items.front();
  CHECK(item.id == id);
  CHECK_FALSE(item.request.has_value());
}

TEST_CASE("requests that will not come again, and all with capacity zero, get no id") {
  Config config;
  config.cache_capacity = 0;
  Root without(1, config);
  without.announce({0}, allreduce("a"));
  without.take();
  CHECK(without.settle() == "execute a");
  CHECK(without.replica.cache_size() == 0);

  Root root(1);
  Request once = allreduce("a");
  once.cacheable = false;
  root.announce({0}, once);
  CHECK(root.settle() == "execute a");
  CHECK(root.replica.cache_size() == 0);
}

TEST_CASE("ranks that disagree fail together, and the name can be used afresh") {
  Root root(3);
  root.announce({1, 2}, allreduce("a", {2}));
  root.announce({0}, allreduce("a", {3}));
  CHECK(root.settle() == "fail a");
  CHECK(root.failure().rfind(
            "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [3], "
            "but another rank sent a tensor of shape [2].\n",
            0) == 0);
  CHECK(root.failure().find("rank 0 sent") != std::string::npos);
  CHECK(root.failure().find("ranks 1, 2 sent") != std::string::npos);
  root.announce({0, 1, 2}, allreduce("a", {2}));
  CHECK(root.settle() == "execute a");
}

TEST_CASE("a cached id against another signature is a mismatch; changed by all it is renewed") {
  Root root(2);
  root.announce({0, 1}, allreduce("a", {2}));
  root.settle();
  root.announce({0}, CacheId{0});
  root.announce({1}, allreduce("a", {3}));
  CHECK(root.settle() == "fail a");
  root.announce({0, 1}, CacheId{0});
  CHECK(root.settle() == "execute a");
  root.announce({0}, allreduce("a", {3}));
  root.announce({1}, allreduce("a", {3}));
  CHECK(root.settle() == "evict 0; execute a");
  CHECK(root.replica.find(allreduce("a", {3})) == CacheId{1});
}

TEST_CASE("the same name twice from one rank fails with both announcements") {
  Root root(2);
  root.announce({0}, allreduce("a"));
  root.announce({0}, allreduce("a"));
  CHECK(root.settle() == "fail a");
  CHECK(root.failure().find("Rank 0 announced tensor 'a' again") != std::string::npos);
  CHECK_FALSE(root.coordinator.take_stall_warning(root.now + 10min).has_value());
}

TEST_CASE("ranks outside the set and sets that do not exist fail") {
  Root root(3);
  root.announce({0}, allreduce("a", {4}, 5));
  CHECK(root.settle() == "fail a");
  CHECK(root.failure() ==
        "Allreduce: Process set provided does not exist, or has not been registered.");
  root.announce({7}, allreduce("b"));
  CHECK(root.settle() == "fail b");
  CHECK(root.failure().find("Rank 7 is not a member") != std::string::npos);
}

TEST_CASE("a complete tensor waits for others until the cycle time, and an idle root for nothing") {
  Config config;
  config.cycle_time_ms = 5;
  Root root(2, config);
  CHECK_FALSE(root.coordinator.next_deadline().has_value());
  root.announce({0, 1}, allreduce("a"));
  CHECK(root.take().empty());
  CHECK(root.coordinator.next_deadline() == root.now + 5ms);
  root.now += 4ms;
  root.announce({0, 1}, allreduce("b"));
  CHECK(root.take().empty());
  root.now += 1ms;
  CHECK(root.text_of_entries(root.take()) == "execute a b");
  CHECK_FALSE(root.coordinator.next_deadline().has_value());
}

TEST_CASE("in a patient job, what nobody waits for is decided seldom") {
  Config config;
  config.cycle_time_ms = 1;
  Root root(2, config, true);
  root.announce({0, 1}, allreduce("a"));
  CHECK(root.coordinator.next_deadline() == root.now + 20ms);
  root.now += 19ms;
  CHECK(root.take().empty());
  root.announce({0}, allreduce("b"), true);
  CHECK(root.take().empty());
  root.announce({1}, allreduce("b"));
  CHECK(root.text_of_entries(root.take()) == "execute a b");

  root.coordinator.set_parameters(1 << 20, 30, true);
  root.announce({0, 1}, allreduce("c"));
  CHECK(root.coordinator.next_deadline() == root.now + 30ms);
  root.coordinator.set_parameters(1 << 20, 0.5, true);
  CHECK(root.coordinator.next_deadline() == root.now + 20ms);
}

TEST_CASE("flushing does not wait when waiting gains nothing") {
  SUBCASE("urgent") {
    Root root(2);
    root.announce({0, 1}, allreduce("a"));
    root.announce({0}, allreduce("b"), true);
    CHECK(root.take().empty());
    root.announce({1}, allreduce("b"));
    CHECK(root.text_of_entries(root.take()) == "execute a b");
  }
  SUBCASE("marked urgent before and after it is complete") {
    Root root(2);
    root.announce({0}, allreduce("a"));
    root.mark("a");
    root.announce({1}, allreduce("a"));
    CHECK(root.text_of_entries(root.take()) == "execute a");
    root.announce({0, 1}, CacheId{0});
    CHECK(root.take().empty());
    root.mark("a");
    CHECK(root.coordinator.next_deadline() <= root.now);
    CHECK(root.text_of_entries(root.take()) == "execute a");
    root.mark("a");  // too late: nothing
    CHECK(root.take().empty());
  }
  SUBCASE("threshold reached") {
    Root root(1, with_threshold(32));
    root.announce({0}, allreduce("a"));
    CHECK(root.take().empty());
    root.announce({0}, allreduce("b"));
    CHECK(root.text_of_entries(root.take()) == "execute a b");
  }
  SUBCASE("no fusion at all") {
    Root root(1, with_threshold(0));
    root.announce({0}, allreduce("a"));
    CHECK(root.text_of_entries(root.take()) == "execute a");
  }
  SUBCASE("a kind that never fuses takes along what is complete") {
    Root root(1);
    root.announce({0}, allreduce("a"));
    root.announce({0}, make_request(Collective::kBarrier, "b"));
    CHECK(root.text_of_entries(root.take()) == "execute a; execute b");
  }
  SUBCASE("a complete group") {
    Root root(1);
    root.announce({0}, in_group(allreduce("a"), "g", 2));
    CHECK(root.take().empty());
    root.announce({0}, in_group(allreduce("b"), "g", 2));
    CHECK(root.text_of_entries(root.take()) == "execute a b");
  }
}

TEST_CASE("a group executes when its last member is complete, as one response") {
  Root root(2, with_threshold(1));
  root.announce({0}, in_group(allreduce("a"), "g", 3));
  root.announce({0}, in_group(allreduce("b"), "g", 3));
  root.announce({0}, in_group(allreduce("c"), "g", 3));
  root.announce({1}, in_group(allreduce("c"), "g", 3));
  root.announce({1}, in_group(allreduce("a"), "g", 3));
  CHECK(root.settle() == "");
  root.announce({1}, in_group(allreduce("b"), "g", 3));
  CHECK(root.settle() == "execute c a b");
}

TEST_CASE("one failing member fails its group, and nothing else") {
  Root root(2);
  root.announce({0, 1}, in_group(allreduce("a"), "g", 2));
  root.announce({0}, in_group(allreduce("b", {2}), "g", 2));
  root.announce({0, 1}, allreduce("z"));
  root.announce({1}, in_group(allreduce("b", {3}), "g", 2));
  CHECK(root.settle() == "fail a b; execute z");
  CHECK(root.failure().find("Mismatched ALLREDUCE tensor shapes") == 0);
  root.announce({0, 1}, in_group(allreduce("a"), "g", 2));
  root.announce({0, 1}, in_group(allreduce("b"), "g", 2));
  CHECK(root.settle() == "execute a b");
}

TEST_CASE("ranks that disagree about a group fail all that is known of it") {
  Root root(2);
  root.announce({0}, in_group(allreduce("a"), "g", 3));
  root.announce({0}, in_group(allreduce("b"), "g", 3));
  root.announce({0}, in_group(allreduce("c"), "g", 3));
  root.announce({1}, in_group(allreduce("a"), "g", 2));
  CHECK(root.settle() == "fail a b c");
  CHECK(root.failure().find("Mismatched groups") == 0);
}

TEST_CASE("with group fusion disabled a group shares its response with nobody") {
  Config config;
  config.disable_group_fusion = true;
  Root root(1, config);
  root.announce({0}, allreduce("x"));
  root.announce({0}, in_group(allreduce("a"), "g", 2));
  root.announce({0}, in_group(allreduce("b"), "g", 2));
  root.announce({0}, in_group(allreduce("s"), "single", 1));
  root.announce({0}, allreduce("y"));
  CHECK(root.settle() == "execute x y; execute a b; execute s");
}

TEST_CASE("process sets get the lowest free id and complete with their own members") {
  Root root(4);
  root.announce({0, 1, 2, 3}, add_set({2, 0}));
  CHECK(root.settle() == "add 1");
  CHECK(*root.replica.members(1) == std::vector<Rank>{0, 2});
  root.announce({0, 1, 2, 3}, add_set({1, 3}));
  CHECK(root.settle() == "add 2");
  root.announce({0, 2}, allreduce("a", {4}, 1));
  root.announce({1}, allreduce("a", {4}, 2));
  CHECK(root.settle() == "execute a");
  root.announce({0, 1, 2, 3}, remove_set(1));
  CHECK(root.settle() == "remove 1");
  root.announce({0, 1, 2, 3}, add_set({0, 1}));
  CHECK(root.settle() == "add 1");
}

TEST_CASE("ranks may name the members of a new set in any order") {
  Root root(2);
  root.announce({0}, add_set({1}));
  root.announce({1}, add_set({1}));
  CHECK(root.settle() == "add 1");
  Root other(3);
  other.announce({0}, add_set({0, 2}));
  other.announce({1, 2}, add_set({2, 0}));
  CHECK(other.settle() == "add 1");
}

TEST_CASE("bad process sets are refused with a reason") {
  Root root(3);
  const auto refused = [&root](const Request& request, const std::string& why) {
    root.log.clear();
    root.announce({0, 1, 2}, request);
    root.settle();
    return root.failure().find(why) != std::string::npos;
  };
  CHECK(refused(add_set({0, 1, 2}), "Attempted to add a duplicate process set: [0, 1, 2]"));
  CHECK(refused(add_set({0, 3}), "invalid ranks"));
  CHECK(refused(add_set({-1, 0}), "invalid ranks"));
  CHECK(refused(add_set({1, 1}), "twice"));
  CHECK(refused(add_set({}), "without ranks"));
  CHECK(refused(remove_set(0), "global process set"));
  CHECK(refused(remove_set(4), "does not exist"));
  root.announce({0, 1}, add_set({0, 1}));
  root.announce({2}, add_set({0, 2}));
  root.settle();
  CHECK(root.failure().find("mismatching values") != std::string::npos);
}

TEST_CASE("removing a set runs what is complete in it and fails the rest") {
  Root root(2);
  root.announce({0, 1}, add_set({1}));
  root.settle();
  root.announce({0, 1}, add_set({0, 1}, "other"));
  CHECK(root.settle() == "fail other");
  Root wide(3);
  wide.announce({0, 1, 2}, add_set({0, 1}));
  wide.settle();
  wide.announce({0, 1}, allreduce("done", {4}, 1));
  wide.announce({0}, allreduce("half", {4}, 1));
  wide.announce({0, 1, 2}, remove_set(1));
  CHECK(wide.settle() == "execute done; fail half; remove 1");
  CHECK(wide.failure() == "Process set has been removed");
  wide.announce({1}, allreduce("late", {4}, 1));
  CHECK(wide.settle() == "fail late");
  wide.announce({0, 1}, CacheId{0});  // its id went with the set
  CHECK(wide.settle() == "");
}

TEST_CASE("shutdown comes after what is complete, and is the last entry") {
  Root root(2);
  root.announce({0, 1}, allreduce("a"));
  root.announce({0}, allreduce("b"));
  UpMessage message;
  message.shutdown = true;
  root.coordinator.receive(message, root.now);
  CHECK(root.text_of_entries(root.take()) == "execute a; shutdown");
  root.announce({1}, allreduce("b"));
  CHECK(root.settle() == "");
  CHECK_FALSE(root.coordinator.next_deadline().has_value());
  CHECK_FALSE(root.coordinator.take_stall_warning(root.now + 10min).has_value());
}
