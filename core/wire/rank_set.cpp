// RankSet: set algebra on sorted disjoint ranges.
#include "wire/rank_set.h"

#include <algorithm>

namespace hvd {

namespace {

Rank end_of(const RankRange& range) { return range.first + range.count; }

// Appends to a list in ascending order, joining what overlaps or touches.
void append(std::vector<RankRange>& ranges, const RankRange& range) {
  if (range.count <= 0) return;
  if (!ranges.empty() && range.first <= end_of(ranges.back())) {
    RankRange& last = ranges.back();
    last.count = std::max(end_of(last), end_of(range)) - last.first;
  } else {
    ranges.push_back(range);
  }
}

}  // namespace

RankSet::RankSet(std::vector<RankRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const RankRange& a, const RankRange& b) { return a.first < b.first; });
  for (const RankRange& range : ranges) append(ranges_, range);
}

RankSet RankSet::of(const std::vector<Rank>& ranks) {
  std::vector<RankRange> ranges;
  ranges.reserve(ranks.size());
  for (const Rank rank : ranks) ranges.push_back({rank, 1});
  return RankSet(std::move(ranges));
}

RankSet RankSet::range(Rank first, Rank count) {
  RankSet set;
  append(set.ranges_, {first, count});
  return set;
}

void RankSet::add(const RankSet& other) {
  if (other.empty()) return;
  if (ranges_.empty() || end_of(ranges_.back()) <= other.ranges_.front().first) {
    for (const RankRange& range : other.ranges_) append(ranges_, range);
    return;
  }
  std::vector<RankRange> merged;
  merged.reserve(ranges_.size() + other.ranges_.size());
  auto mine = ranges_.begin();
  auto theirs = other.ranges_.begin();
  while (mine != ranges_.end() || theirs != other.ranges_.end()) {
    const bool take_mine =
        theirs == other.ranges_.end() || (mine != ranges_.end() && mine->first <= theirs->first);
    append(merged, take_mine ? *mine++ : *theirs++);
  }
  ranges_ = std::move(merged);
}

void RankSet::remove(const RankSet& other) {
  std::vector<RankRange> kept;
  auto hole = other.ranges_.begin();
  for (const RankRange& range : ranges_) {
    Rank begin = range.first;
    while (hole != other.ranges_.end() && end_of(*hole) <= begin) ++hole;
    for (auto it = hole; it != other.ranges_.end() && it->first < end_of(range); ++it) {
      if (it->first > begin) kept.push_back({begin, it->first - begin});
      begin = std::max(begin, end_of(*it));
    }
    if (begin < end_of(range)) kept.push_back({begin, end_of(range) - begin});
  }
  ranges_ = std::move(kept);
}

RankSet RankSet::intersection(const RankSet& other) const {
  RankSet common;
  auto mine = ranges_.begin();
  auto theirs = other.ranges_.begin();
  while (mine != ranges_.end() && theirs != other.ranges_.end()) {
    const Rank begin = std::max(mine->first, theirs->first);
    const Rank end = std::min(end_of(*mine), end_of(*theirs));
    if (begin < end) common.ranges_.push_back({begin, end - begin});
    if (end_of(*mine) < end_of(*theirs)) {
      ++mine;
    } else {
      ++theirs;
    }
  }
  return common;
}

bool RankSet::contains(Rank rank) const {
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), rank,
                       [](Rank value, const RankRange& range) { return value < range.first; });
  return after != ranges_.begin() && rank < end_of(*std::prev(after));
}

bool RankSet::contains_all(const std::vector<Rank>& ranks) const {
  return std::all_of(ranks.begin(), ranks.end(), [this](Rank rank) { return contains(rank); });
}

bool RankSet::contains_all(const RankSet& other) const {
  auto mine = ranges_.begin();
  for (const RankRange& wanted : other.ranges_) {
    while (mine != ranges_.end() && end_of(*mine) <= wanted.first) ++mine;
    if (mine == ranges_.end() || mine->first > wanted.first || end_of(*mine) < end_of(wanted)) {
      return false;
    }
  }
  return true;
}

bool RankSet::intersects(const RankSet& other) const {
  auto mine = ranges_.begin();
  auto theirs = other.ranges_.begin();
  while (mine != ranges_.end() && theirs != other.ranges_.end()) {
    if (end_of(*mine) <= theirs->first) {
      ++mine;
    } else if (end_of(*theirs) <= mine->first) {
      ++theirs;
    } else {
      return true;
    }
  }
  return false;
}

Rank RankSet::size() const {
  Rank total = 0;
  for (const RankRange& range : ranges_) total += range.count;
  return total;
}

std::vector<Rank> RankSet::to_vector() const {
  std::vector<Rank> ranks;
  ranks.reserve(static_cast<std::size_t>(size()));
  for (const RankRange& range : ranges_) {
    for (Rank rank = range.first; rank < end_of(range); ++rank) ranks.push_back(rank);
  }
  return ranks;
}

std::string to_string(const RankSet& ranks) {
  std::string text;
  for (const RankRange& range : ranks.ranges()) {
    if (!text.empty()) text += ", ";
    text += std::to_string(range.first);
    if (range.count > 1) {
      text += range.count == 2 ? ", " : "-";
      text += std::to_string(range.first + range.count - 1);
    }
  }
  return text;
}

}  // namespace hvd
