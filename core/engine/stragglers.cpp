#include "engine/stragglers.h"

#include <algorithm>
#include <cmath>

namespace hvd {

void Stragglers::completed(const RankSet& last, TimePoint others_there,
                           std::optional<TimePoint> blocked_since, TimePoint now) {
  if (last.empty()) return;
  Cost& cost = costs_[last.first()];
  if (cost.ranks != last) cost.ranks = last;
  if (!blocked_since) {
    ++unblocked_;
    cost.late += now - others_there;
    ++cost.late_operations;
    return;
  }
  const TimePoint from = std::max({others_there, *blocked_since, cost.blocked_until});
  if (now > from) cost.blocked += now - from;
  cost.blocked_until = std::max(cost.blocked_until, now);
}

void Stragglers::step(TimePoint now) {
  if (begin_ == TimePoint{}) {
    begin_ = now;
    costs_.clear();
    return;
  }
  if (++steps_ >= kSteps && now - begin_ >= kTime) end_window(now);
}

void Stragglers::end_window(TimePoint now) {
  const double time = std::chrono::duration<double>(now - begin_).count();
  std::set<Rank> over;
  last_seconds_.clear();
  for (const auto& [first, cost] : costs_) {
    double seconds = std::chrono::duration<double>(cost.blocked).count();
    if (unblocked_ > 0) {
      const double late = std::chrono::duration<double>(cost.late).count();
      seconds += late / static_cast<double>(unblocked_) * static_cast<double>(steps_);
    }
    for (const RankRange& range : cost.ranks.ranges()) {
      for (Rank r = range.first; r < range.first + range.count; ++r) last_seconds_[r] += seconds;
    }
    const bool matters =
        seconds > share_ * time && seconds > kLeastPerStep * static_cast<double>(steps_);
    if (share_ <= 0 || !matters) continue;
    over.insert(first);
    if (over_.contains(first) && named_.insert(first).second) {
      found_.push_back({cost.ranks, seconds / time, seconds / static_cast<double>(steps_)});
    }
  }
  ++windows_;
  over_ = std::move(over);
  begin_ = now;
  steps_ = 0;
  unblocked_ = 0;
  costs_.clear();
}

std::optional<Stragglers::Straggler> Stragglers::take() {
  if (found_.empty()) return std::nullopt;
  Straggler first = std::move(found_.front());
  found_.erase(found_.begin());
  return first;
}

std::string straggler_text(const Stragglers::Straggler& straggler, const Topology& topology) {
  const Rank first = straggler.ranks.first();
  const bool one = straggler.ranks.size() == 1;
  const auto percent = std::lround(straggler.share * 100);
  const double milliseconds = std::round(straggler.seconds_per_step * 1e4) / 10;
  std::string ms = std::to_string(milliseconds);
  ms.resize(ms.find('.') + 2);
  return (one ? "Rank " : "Ranks ") + to_string(straggler.ranks) + " on host " +
         topology.host_name_of(first) + (one ? " is" : " are") + " slow: the others waited for " +
         (one ? "it" : "them") + " for " + std::to_string(percent) +
         " % of the time over the last steps, " + ms +
         " ms in each step. Look for what is different there: another program on the machine, a "
         "slower disk or processor, more data, or work that only this rank does "
         "(HOROVOD_STRAGGLER_WARNING_SHARE sets the limit; this is said once).";
}

}  // namespace hvd
