// The replica: ids from the log, signatures, process sets.
#include "engine/replica.h"
#include "testing.h"

using namespace hvd;

namespace {

Request allreduce(const std::string& name, Shape shape = {2}, ProcessSetId set = 0) {
  Request r;
  r.name = name;
  r.shape = std::move(shape);
  r.process_set = set;
  return r;
}

ExecuteEntry assign(CacheId id, const Request& request) { return ExecuteEntry{{{id, request}}}; }

}  // namespace

TEST_CASE("an id stands for exactly the request that the log gave it to") {
  Replica replica(4);
  CHECK_FALSE(replica.find(allreduce("x")).has_value());
  replica.apply(assign(7, allreduce("x")));
  CHECK(replica.find(allreduce("x")) == CacheId{7});
  CHECK(replica.find_name({0, "x"}) == CacheId{7});
  CHECK(*replica.request(7) == allreduce("x"));

  CHECK_FALSE(replica.find(allreduce("y")).has_value());
  CHECK_FALSE(replica.find(allreduce("x", {2}, 1)).has_value());
  Request other = allreduce("x");
  SUBCASE("shape") { other.shape = {3}; }
  SUBCASE("dtype") { other.dtype = DataType::kFloat64; }
  SUBCASE("op") { other.op = ReduceOp::kMax; }
  SUBCASE("kind") { other.kind = Collective::kBroadcast; }
  SUBCASE("prescale") { other.prescale = 0.5; }
  SUBCASE("postscale") { other.postscale = 0.5; }
  SUBCASE("device") { other.device = 0; }
  SUBCASE("group") { other.group = "g"; }
  SUBCASE("not cacheable") { other.cacheable = false; }
  CHECK_FALSE(replica.find(other).has_value());
}

TEST_CASE(
    "the root of a broadcast belongs to its signature, the rows of allgather and alltoall not") {
  Replica replica(4);
  Request broadcast = allreduce("b");
  broadcast.kind = Collective::kBroadcast;
  broadcast.root = 1;
  replica.apply(assign(1, broadcast));
  broadcast.root = 2;
  CHECK_FALSE(replica.find(broadcast).has_value());

  for (const Collective kind : {Collective::kAllgather, Collective::kAlltoall}) {
    Request gather = allreduce("g", {2, 5});
    gather.kind = kind;
    replica.apply(assign(2, gather));
    gather.shape = {9, 5};
    CHECK(replica.find(gather) == CacheId{2});
    gather.shape = {9, 6};
    CHECK_FALSE(replica.find(gather).has_value());
    gather.shape = {9};
    CHECK_FALSE(replica.find(gather).has_value());
    replica.apply(EvictEntry{{2}});
  }
}

TEST_CASE("responses resolve to requests by id, by assignment and in full") {
  Replica replica(2);
  replica.apply(assign(0, allreduce("known")));
  const ExecuteEntry entry{{{0, {}}, {1, allreduce("new")}, {{}, allreduce("once")}}};
  replica.apply(entry);
  const auto requests = replica.resolve(entry);
  REQUIRE(requests.size() == 3);
  CHECK(requests[0]->name == "known");
  CHECK(requests[1]->name == "new");
  CHECK(requests[2]->name == "once");
  CHECK(replica.cache_size() == 2);

  replica.apply(EvictEntry{{0, 1, 99}});
  CHECK(replica.cache_size() == 0);
  CHECK(replica.request(0) == nullptr);
  CHECK_FALSE(replica.find(allreduce("known")).has_value());
  CHECK(requests[0]->name == "known");
}

TEST_CASE("process sets come and go with the log, and take their ids with them") {
  Replica replica(4);
  REQUIRE(replica.members(0) != nullptr);
  CHECK(*replica.members(0) == std::vector<Rank>{0, 1, 2, 3});
  CHECK(replica.members(1) == nullptr);
  CHECK(replica.member_ranges(1) == nullptr);

  replica.apply(AddProcessSetEntry{"add", 1, {0, 2}});
  CHECK(*replica.members(1) == std::vector<Rank>{0, 2});
  CHECK(*replica.member_ranges(1) == RankSet::of({0, 2}));
  replica.apply(assign(3, allreduce("x", {2}, 1)));
  replica.apply(assign(4, allreduce("x", {2}, 0)));
  CHECK(replica.find(allreduce("x", {2}, 1)) == CacheId{3});

  replica.apply(RemoveProcessSetEntry{"remove", 1});
  CHECK(replica.members(1) == nullptr);
  CHECK(replica.request(3) == nullptr);
  CHECK(replica.find(allreduce("x")) == CacheId{4});
  CHECK(replica.process_sets().size() == 1);
}
