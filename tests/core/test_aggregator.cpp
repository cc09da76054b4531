// An inner node of the tree: what it merges, what it holds, what it passes on at once.
#include "engine/aggregator.h"
#include "negotiation_world.h"
#include "testing.h"

using namespace hvd;
using namespace hvd::samples;

namespace {

std::string text_of(const Announcement& a) {
  std::string text;
  if (const auto* id = std::get_if<CacheId>(&a.what)) {
    text = std::string("#").append(std::to_string(*id));
  } else {
    text = std::get<Request>(a.what).name;
  }
  return text + "(" + to_string(a.ranks) + ")" + (a.urgent ? "!" : "");
}

// Rank 1 of 8, above ranks 2 and 3, with its replica and clock. Sets: 1 = {0, 2}, 2 = {4, 5}.
struct Node {
  Aggregator aggregator{RankSet::range(1, 3), 1s};
  Replica replica{8};
  TimePoint now = start_of_time();

  Node() {
    apply(AddProcessSetEntry{"add", 1, {0, 2}});
    apply(AddProcessSetEntry{"add", 2, {4, 5}});
    apply(ExecuteEntry{{{CacheId{7}, allreduce("cached")}}});
  }
  void apply(const LogEntry& entry) {
    replica.apply(entry);
    aggregator.apply(entry, replica);
  }
  void announce(const std::vector<Rank>& ranks, Request request, bool urgent = false) {
    aggregator.receive(up({{std::move(request), RankSet::of(ranks), urgent}}), replica, now);
  }
  void announce(const std::vector<Rank>& ranks, CacheId id, bool urgent = false) {
    aggregator.receive(up({{id, RankSet::of(ranks), urgent}}), replica, now);
  }
  void join(Rank rank) { announce({rank}, make_request(Collective::kJoin, "join")); }
  void mark(const std::string& name) {
    UpMessage message;
    message.urgent.push_back({0, name});
    aggregator.receive(message, replica, now);
  }
  std::string take() {
    std::string text;
    const UpMessage message = aggregator.take(now);
    const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : " ") + part; };
    for (const Announcement& a : message.announcements) add(text_of(a));
    for (const UrgentMark& mark : message.urgent) add("!" + mark.name);
    if (message.shutdown) add("shutdown");
    return text;
  }
};

}  // namespace

TEST_CASE("equal announcements become one when all members below have made them") {
  Node node;
  node.announce({3}, allreduce("a"));
  node.announce({1}, allreduce("a"));
  CHECK(node.take() == "");
  CHECK(node.aggregator.next_deadline() == node.now + 1s);
  node.announce({2}, allreduce("a"));
  CHECK(node.take() == "a(1-3)");
  CHECK_FALSE(node.aggregator.next_deadline().has_value());
  node.announce({1, 2, 3}, CacheId{7});
  CHECK(node.take() == "#7(1-3)");
}

TEST_CASE("differing announcements of one name are complete together") {
  Node node;
  node.announce({1}, CacheId{7});
  node.announce({2}, allreduce("cached", {9}));
  node.announce({3}, CacheId{7}, true);
  CHECK(node.take() == "#7(1, 3)! cached(2)!");
}

TEST_CASE("rows of allgather do not keep announcements apart") {
  Node node;
  node.announce({1}, make_request(Collective::kAllgather, "g", {1, 4}));
  node.announce({2}, make_request(Collective::kAllgather, "g", {2, 4}));
  node.announce({3}, make_request(Collective::kAllgather, "g", {3, 4}));
  CHECK(node.take() == "g(1-3)");
}

TEST_CASE("only members of the set are waited for") {
  Node node;
  node.announce({2}, allreduce("a", {4}, 1));
  CHECK(node.take() == "a(2)");
}

TEST_CASE("what can't be judged here is passed on at once") {
  Node node;
  node.announce({2}, allreduce("a", {4}, 9));
  node.announce({3}, CacheId{99});
  CHECK(node.take() == "a(2) #99(3)");
}

TEST_CASE("a leaf passes on everything") {
  Aggregator leaf(RankSet(5), 1s);
  const Replica replica(8);
  UpMessage message = up({{allreduce("a"), RankSet(5), false}});
  message.urgent.push_back({0, "a"});
  leaf.receive(message, replica, start_of_time());
  const UpMessage sent = leaf.take(start_of_time());
  CHECK(sent.announcements.size() == 1);
  CHECK(sent.urgent.size() == 1);
  CHECK(leaf.take(start_of_time()).empty());
}

TEST_CASE("after the hold time a part is passed on, and the rest when it is complete") {
  Node node;
  node.announce({1}, allreduce("a"));
  node.now += 999ms;
  CHECK(node.take() == "");
  node.now += 1ms;
  CHECK(node.take() == "a(1)");
  CHECK_FALSE(node.aggregator.next_deadline().has_value());
  node.announce({3}, allreduce("a"));
  CHECK(node.take() == "");
  CHECK(node.aggregator.next_deadline() == node.now + 1s);
  node.announce({2}, allreduce("a"));
  CHECK(node.take() == "a(2, 3)");
  node.now += 1h;
  CHECK(node.take() == "");
}

TEST_CASE("a mark rides with what is held, follows what was passed on, and goes once") {
  Node node;
  node.announce({1}, allreduce("a"));
  node.mark("a");
  CHECK(node.take() == "");
  node.announce({2, 3}, allreduce("a"));
  CHECK(node.take() == "a(1-3)!");
  node.mark("a");
  node.mark("a");
  CHECK(node.take() == "!a");
  node.mark("a");
  CHECK(node.take() == "");
  node.apply(ExecuteEntry{{{CacheId{8}, allreduce("a")}}});
  node.announce({1, 2, 3}, CacheId{8});
  CHECK(node.take() == "#8(1-3)");
  node.mark("a");
  CHECK(node.take() == "!a");
}

TEST_CASE("a mark for a part that was passed on goes at once") {
  Node node;
  node.announce({1}, allreduce("a"));
  node.now += 1s;
  CHECK(node.take() == "a(1)");
  node.mark("a");
  CHECK(node.take() == "!a");
}

TEST_CASE("an eviction drops what was announced by id, and it can be announced again") {
  Node node;
  node.announce({1, 3}, CacheId{7});
  node.announce({2}, allreduce("other"));
  node.apply(EvictEntry{{7}});
  node.announce({1, 2, 3}, allreduce("cached"));
  CHECK(node.take() == "cached(1-3)");
  node.now += 1s;
  CHECK(node.take() == "other(2)");
}

TEST_CASE("an eviction also voids a part that was passed on") {
  Node node;
  node.announce({1}, CacheId{7});
  node.now += 1s;
  CHECK(node.take() == "#7(1)");
  node.apply(EvictEntry{{7}});
  node.announce({1}, allreduce("cached"));
  node.announce({2}, allreduce("cached"));
  CHECK(node.take() == "");
  node.announce({3}, allreduce("cached"));
  CHECK(node.take() == "cached(1-3)");
}

TEST_CASE("failed and executed names are forgotten") {
  for (const bool failed : {true, false}) {
    Node node;
    node.announce({1}, allreduce("a"));
    if (failed) {
      node.apply(FailEntry{0, {"a"}, "why"});
    } else {
      node.apply(ExecuteEntry{{{{}, allreduce("a")}}});
    }
    CHECK_FALSE(node.aggregator.next_deadline().has_value());
    node.announce({2, 3}, allreduce("a"));
    CHECK(node.take() == "");
    node.announce({1}, allreduce("a"));
    CHECK(node.take() == "a(1-3)");
  }
}

TEST_CASE("a join passes on what that rank announced before, and is then not waited for") {
  Node node;
  node.announce({2}, allreduce("before"));
  node.announce({1}, allreduce("elsewhere"));
  node.join(2);
  CHECK(node.take() == "before(2) join(2)");
  node.announce({3}, allreduce("elsewhere"));
  CHECK(node.take() == "elsewhere(1, 3)");
  node.announce({1, 3}, allreduce("before"));
  CHECK(node.take() == "before(1, 3)");
  node.announce({1, 3}, allreduce("after"));
  CHECK(node.take() == "after(1, 3)");

  node.apply(JoinedEntry{2});
  node.announce({1, 3}, allreduce("again"));
  CHECK(node.take() == "");
  node.announce({2}, allreduce("again"));
  CHECK(node.take() == "again(1-3)");
}

TEST_CASE("a join that completes what is held passes it on first") {
  Node node;
  node.announce({1, 3}, allreduce("a"));
  node.join(2);
  CHECK(node.take() == "a(1, 3) join(2)");
}

TEST_CASE("a removed set takes what is held with it") {
  Node node;
  node.apply(AddProcessSetEntry{"add", 3, {1, 2}});
  node.announce({1}, allreduce("a", {4}, 3));
  node.apply(RemoveProcessSetEntry{"remove", 3});
  CHECK_FALSE(node.aggregator.next_deadline().has_value());
  node.apply(AddProcessSetEntry{"add", 3, {1, 3}});
  node.announce({1}, allreduce("a", {4}, 3));
  CHECK(node.take() == "");
  node.announce({3}, allreduce("a", {4}, 3));
  CHECK(node.take() == "a(1, 3)");
}

TEST_CASE("the wish to shut down is passed on at once") {
  Node node;
  UpMessage message;
  message.shutdown = true;
  node.aggregator.receive(message, node.replica, node.now);
  CHECK(node.take() == "shutdown");
  CHECK(node.take() == "");
}
