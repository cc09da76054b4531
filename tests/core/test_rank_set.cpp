// RankSet against std::set as the reference.
#include <algorithm>
#include <random>
#include <set>

#include "testing.h"
#include "wire/rank_set.h"

using namespace hvd;

namespace {

std::set<Rank> random_ranks(std::mt19937& random) {
  std::set<Rank> ranks;
  const auto count = random() % 12;
  for (std::size_t i = 0; i < count; ++i) ranks.insert(static_cast<Rank>(random() % 16));
  return ranks;
}

RankSet of(const std::set<Rank>& ranks) { return RankSet::of({ranks.begin(), ranks.end()}); }

bool is_canonical(const RankSet& set) {
  const auto& ranges = set.ranges();
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].count < 1) return false;
    if (i > 0 && ranges[i - 1].first + ranges[i - 1].count >= ranges[i].first) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("ranges are sorted, merged and disjoint whatever goes in") {
  CHECK(RankSet({{4, 2}, {0, 2}, {2, 2}}).ranges() == std::vector<RankRange>{{0, 6}});
  CHECK(RankSet({{5, 1}, {0, 3}, {1, 1}}).ranges() == std::vector<RankRange>{{0, 3}, {5, 1}});
  CHECK(RankSet(std::vector<RankRange>{{3, 0}}).empty());
  CHECK(RankSet::of({7, 3, 4, 3}).to_vector() == std::vector<Rank>{3, 4, 7});
  CHECK(RankSet::range(2, 3) == RankSet::of({2, 3, 4}));
  CHECK(RankSet::range(2, 0).empty());
}

TEST_CASE("set algebra agrees with the reference") {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    const std::set<Rank> a = random_ranks(random);
    const std::set<Rank> b = random_ranks(random);
    std::set<Rank> both = a;
    both.insert(b.begin(), b.end());
    std::set<Rank> common;
    std::set<Rank> only_a;
    for (const Rank r : a) (b.contains(r) ? common : only_a).insert(r);

    RankSet sum = of(a);
    sum.add(of(b));
    RankSet rest = of(a);
    rest.remove(of(b));
    REQUIRE(sum == of(both));
    REQUIRE(rest == of(only_a));
    REQUIRE(of(a).intersection(of(b)) == of(common));
    REQUIRE(is_canonical(sum));
    REQUIRE(is_canonical(rest));
    REQUIRE(of(a).intersects(of(b)) == !common.empty());
    REQUIRE(of(a).contains_all(of(b)) == (common.size() == b.size()));
    REQUIRE(of(a).contains_all(std::vector<Rank>(b.begin(), b.end())) ==
            (common.size() == b.size()));
    REQUIRE(of(a).size() == static_cast<Rank>(a.size()));
    for (Rank r = -1; r < 17; ++r) REQUIRE(of(a).contains(r) == a.contains(r));
  }
}

TEST_CASE("a world of a hundred thousand ranks stays one range") {
  RankSet set;
  for (Rank r = 0; r < 100000; ++r) set.add(RankSet(r));
  CHECK(set.ranges().size() == 1);
  CHECK(set.size() == 100000);
}

TEST_CASE("text is compact") {
  CHECK(to_string(RankSet::of({0, 2, 3, 4, 8, 9})) == "0, 2-4, 8, 9");
  CHECK(to_string(RankSet()) == "");
}
