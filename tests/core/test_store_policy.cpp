// StorePolicy: finds the cheaper kind of store and follows when that changes.
#include "collectives/store_policy.h"
#include "testing.h"

using namespace hvd;

namespace {

constexpr std::size_t kWork = 4 << 20;

// Feeds `samples` samples with the given costs; how many of them were written with `store`.
int feed(StorePolicy& policy, int samples, double ordinary, double streaming, Store store) {
  int count = 0;
  for (int i = 0; i < samples; ++i) {
    const Store chosen = policy.choose(kWork);
    if (chosen == store) ++count;
    policy.record(kWork, chosen, 1000, 1000 * (chosen == Store::kOrdinary ? ordinary : streaming));
  }
  return count;
}

}  // namespace

TEST_CASE("the cheaper store is used for almost all samples") {
  StorePolicy policy;
  CHECK(feed(policy, 1000, 1.0, 3.0, Store::kOrdinary) > 950);
  CHECK(policy.best(kWork) == Store::kOrdinary);
  StorePolicy other;
  CHECK(feed(other, 1000, 3.0, 1.0, Store::kStreaming) > 950);
  CHECK(other.best(kWork) == Store::kStreaming);
}

TEST_CASE("a change of costs is followed within a few samples") {
  StorePolicy policy;
  feed(policy, 1000, 0.3, 1.0, Store::kOrdinary);
  CHECK(feed(policy, 100, 3.0, 1.0, Store::kStreaming) > 85);
  CHECK(policy.best(kWork) == Store::kStreaming);
  feed(policy, 500, 0.3, 1.0, Store::kOrdinary);  // the good news is found by a trial
  CHECK(policy.best(kWork) == Store::kOrdinary);
}

TEST_CASE("a single slow sample changes nothing") {
  StorePolicy policy;
  feed(policy, 100, 1.0, 3.0, Store::kOrdinary);
  const Store chosen = policy.choose(kWork);
  policy.record(kWork, chosen, 1000, 1e9);
  feed(policy, 20, 1.0, 3.0, Store::kOrdinary);
  CHECK(policy.best(kWork) == Store::kOrdinary);
}

TEST_CASE("a first sample that was slow by chance does not count for long") {
  StorePolicy policy;  // begins with ordinary stores, into memory that nobody has touched yet
  feed(policy, 1, 10.0, 2.0, Store::kOrdinary);
  CHECK(feed(policy, 100, 1.0, 2.0, Store::kOrdinary) > 75);
  CHECK(policy.best(kWork) == Store::kOrdinary);
  CHECK(feed(policy, 1000, 1.0, 2.0, Store::kOrdinary) > 970);  // and trials become rare
}

TEST_CASE("works of different sizes are judged apart; new sizes start from what was found last") {
  StorePolicy policy;
  policy.follow(64 << 10, Store::kOrdinary);
  policy.follow(kWork, Store::kStreaming);
  CHECK(policy.choose(kWork) == Store::kStreaming);
  CHECK(policy.choose(64 << 10) == Store::kOrdinary);
  CHECK(policy.best(1 << 20) == Store::kStreaming);
}
