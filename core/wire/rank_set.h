// RankSet: a set of ranks, kept as sorted disjoint ranges so that "everybody below me" stays small.
// All operations cost the number of ranges, not the number of ranks (except `to_vector`).
#pragma once

#include <string>
#include <vector>

#include "base/types.h"

namespace hvd {

struct RankRange {
  Rank first = 0;
  Rank count = 0;
  bool operator==(const RankRange&) const = default;
};

class RankSet {
 public:
  RankSet() = default;
  explicit RankSet(Rank single) : ranges_{{single, 1}} {}
  explicit RankSet(std::vector<RankRange> ranges);  // any order, overlaps allowed
  static RankSet of(const std::vector<Rank>& ranks);
  static RankSet range(Rank first, Rank count);  // count 0: empty

  void add(const RankSet& other);
  void remove(const RankSet& other);
  RankSet intersection(const RankSet& other) const;

  bool contains(Rank rank) const;
  bool contains_all(const std::vector<Rank>& ranks) const;
  bool contains_all(const RankSet& other) const;
  bool intersects(const RankSet& other) const;
  Rank size() const;
  Rank first() const { return ranges_.front().first; }  // lowest; undefined when empty
  bool empty() const { return ranges_.empty(); }
  void clear() { ranges_.clear(); }
  std::vector<Rank> to_vector() const;
  const std::vector<RankRange>& ranges() const { return ranges_; }
  bool operator==(const RankSet&) const = default;

 private:
  std::vector<RankRange> ranges_;  // ascending, not empty, neighbours do not touch
};

// "0, 2-5, 9"
std::string to_string(const RankSet& ranks);

}  // namespace hvd
