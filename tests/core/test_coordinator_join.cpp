// Join and barrier at the root.
#include "engine/coordinator.h"
#include "negotiation_world.h"
#include "testing.h"

using namespace hvd;
using namespace hvd::samples;

TEST_CASE("joined ranks count as ready for allreduce, cached or not, until all have joined") {
  Root root(3);
  root.announce({0, 1, 2}, allreduce("a"));
  root.settle();
  root.join({2});
  root.announce({0}, CacheId{0});
  CHECK(root.settle() == "");
  root.announce({1}, CacheId{0});
  CHECK(root.settle() == "execute a");
  root.announce({0, 1}, allreduce("new"));
  CHECK(root.settle() == "execute new");
  root.join({0});
  CHECK(root.settle() == "");
  root.join({1});
  CHECK(root.settle() == "joined 1");
}

TEST_CASE("join starts afresh after all have joined") {
  Root root(2);
  root.join({0});
  root.join({1});
  CHECK(root.settle() == "joined 1");
  root.announce({0}, allreduce("a"));
  CHECK(root.settle() == "");
  root.announce({1}, allreduce("a"));
  CHECK(root.settle() == "execute a");
  root.join({1});
  root.join({0});
  CHECK(root.settle() == "joined 0");
  root.join({0, 1});
  CHECK(root.settle() == "joined 1");
}

TEST_CASE("a join completes what waited for that rank, before the entry that ends the join") {
  Root root(2);
  root.announce({0}, allreduce("a"));
  CHECK(root.settle() == "");
  root.join({1});
  CHECK(root.settle() == "execute a");
  root.announce({0}, allreduce("b"));
  root.join({0});
  CHECK(root.text_of_entries(root.take()) == "execute b; joined 0");
}

TEST_CASE("kinds that can't do without a rank fail for those who announced") {
  const std::vector<std::pair<Collective, std::string>> cases{
      {Collective::kAllgather,
       "Allgather is not supported with Join at this time. Specify sparse_to_dense=True if using "
       "DistributedOptimizer"},
      {Collective::kBroadcast, "Broadcast is not supported with Join at this time."},
      {Collective::kAlltoall, "Alltoall is not supported with Join at this time."},
      {Collective::kReducescatter, "Reducescatter is not supported with Join at this time."}};
  for (const auto& [kind, text] : cases) {
    Root root(3);
    root.join({1});
    root.announce({0}, make_request(kind, "x"));
    CHECK(root.settle() == "");
    root.announce({2}, make_request(kind, "x"));
    CHECK(root.settle() == "fail x");
    CHECK(root.failure() == text);
    root.join({0, 2});
    CHECK(root.settle() == "joined 2");
  }
}

TEST_CASE("what a rank announced before it joined is its own") {
  Root root(2);
  root.announce({1}, make_request(Collective::kAllgather, "x"));
  root.join({1});
  root.announce({0}, make_request(Collective::kAllgather, "x"));
  CHECK(root.settle() == "execute x");
}

TEST_CASE("a barrier does not wait for joined ranks, nor for anything else") {
  Root root(3);
  root.announce({0}, allreduce("slow"));
  root.join({2});
  root.announce({0, 1}, make_request(Collective::kBarrier, "b", {}));
  CHECK(root.text_of_entries(root.take()) == "execute b");
}

TEST_CASE("in other sets a joined rank is missed like any other") {
  Root root(3);
  Request add = make_request(Collective::kAddProcessSet, "add", {});
  add.ranks = {0, 1};
  root.announce({0, 1, 2}, add);
  CHECK(root.settle() == "add 1");
  root.join({1});
  root.announce({0}, allreduce("a", {4}, 1));
  CHECK(root.settle() == "");
  root.announce({1}, allreduce("a", {4}, 1));
  CHECK(root.settle() == "execute a");
}

TEST_CASE("groups complete with joined ranks") {
  Root root(2);
  root.join({1});
  root.announce({0}, in_group(allreduce("a"), "g", 2));
  root.announce({0}, in_group(allreduce("b"), "g", 2));
  CHECK(root.settle() == "execute a b");
}
