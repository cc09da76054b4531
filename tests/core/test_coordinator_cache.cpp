// The root's side of the response cache: ids, the least recently used goes first, nobody loses an
// announcement.
#include "engine/coordinator.h"
#include "negotiation_world.h"
#include "testing.h"

using namespace hvd;
using namespace hvd::samples;

namespace {

Config with_capacity(std::int64_t capacity) {
  Config config;
  config.cache_capacity = capacity;
  return config;
}

}  // namespace

TEST_CASE("the id that was used longest ago is evicted, before the response that needs room") {
  Root root(1, with_capacity(2));
  for (const char* name : {"a", "b"}) {
    root.announce({0}, allreduce(name));
    root.settle();
  }
  root.announce({0}, *root.replica.find(allreduce("a")));
  root.settle();
  root.announce({0}, allreduce("c"));
  CHECK(root.settle() == "evict 1; execute c");
  CHECK(root.replica.find(allreduce("a")).has_value());
  CHECK_FALSE(root.replica.find(allreduce("b")).has_value());
}

TEST_CASE("an id that somebody has announced is not evicted") {
  Root root(2, with_capacity(1));
  root.announce({0, 1}, allreduce("a"));
  root.settle();
  root.announce({0}, CacheId{0});
  root.announce({0, 1}, allreduce("b"));
  CHECK(root.settle() == "execute b");
  CHECK(root.replica.cache_size() == 1);
  root.announce({1}, CacheId{0});
  CHECK(root.settle() == "execute a");
  root.announce({0, 1}, allreduce("b"));
  CHECK(root.settle() == "evict 0; execute b");
}

TEST_CASE("a late announcement of an evicted id is ignored; the full one that follows counts") {
  Root root(2, with_capacity(1));
  root.announce({0, 1}, allreduce("a"));
  root.settle();
  root.announce({0, 1}, allreduce("b"));
  CHECK(root.settle() == "evict 0; execute b");
  root.announce({0, 1}, CacheId{0});
  CHECK(root.settle() == "");
  root.announce({0, 1}, allreduce("a"));
  CHECK(root.settle() == "evict 1; execute a");
}

TEST_CASE("a response larger than the cache caches what fits and stays consistent") {
  Root root(1, with_capacity(2));
  for (const char* name : {"a", "b", "c"}) root.announce({0}, allreduce(name));
  CHECK(root.settle() == "execute a b c");
  CHECK(root.replica.cache_size() == 2);
  for (const char* name : {"a", "b", "c"}) {
    if (const auto id = root.replica.find(allreduce(name))) {
      root.announce({0}, *id);
    } else {
      root.announce({0}, allreduce(name));
    }
  }
  CHECK(root.settle() == "execute a b c");
  CHECK(root.replica.cache_size() == 2);
}

TEST_CASE("a failed operation gives its id back to the order of eviction") {
  Root root(2, with_capacity(1));
  root.announce({0, 1}, allreduce("a"));
  root.settle();
  root.announce({0}, CacheId{0});
  root.announce({1}, allreduce("a", {9}));
  CHECK(root.settle() == "fail a");
  root.announce({0, 1}, allreduce("b"));
  CHECK(root.settle() == "evict 0; execute b");
}

TEST_CASE("a cache that is too small is reported once, with the number to set") {
  Root root(1, with_capacity(3));
  for (int step = 0; step < 4; ++step) {
    for (const char* name : {"a", "b", "c", "d", "e"}) {
      if (const auto id = root.replica.find(allreduce(name))) {
        root.announce({0}, *id);
      } else {
        root.announce({0}, allreduce(name));
      }
      root.settle();
    }
    const auto warning = root.coordinator.take_warning();
    CHECK(warning.has_value() == (step == 1));
    if (warning) CHECK(warning->find("HOROVOD_CACHE_CAPACITY to 5") != std::string::npos);
  }
}

TEST_CASE("a tensor that merely changes its shape causes no warning") {
  Root root(1, with_capacity(3));
  for (std::int64_t rows = 1; rows < 20; ++rows) {
    root.announce({0}, allreduce("a", {rows}));
    root.settle();
  }
  CHECK(root.replica.cache_size() == 1);
  CHECK_FALSE(root.coordinator.take_warning().has_value());
}
