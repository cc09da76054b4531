// Stragglers: which rank the others wait for, and how much of the time. At the root. Pure.
//
// An operation whose last ranks come late costs the others
//  - where one of them is blocked in it: the time from when all others were there (and somebody blocked)
//    until the last came; overlapping waits for the same rank count once;
//  - where nobody is blocked (the gradients of a backward pass): all tensors of a step are late together, so
//    their mean lateness, once per step.
// A window of steps ends when it has both enough steps and enough time. A rank is named once, when it costs
// more than its share in two windows in a row: one long evaluation on one rank is no straggler.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/config.h"
#include "wire/rank_set.h"

namespace hvd {

class Stragglers {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `share`: of the time, above which a rank is named; 0: never.
  explicit Stragglers(double share) : share_(share) {}

  // An operation became complete at `now` by the announcement of `last`; all others were there since
  // `others_there`, and somebody was blocked in it since `blocked_since`, if at all.
  void completed(const RankSet& last, TimePoint others_there,
                 std::optional<TimePoint> blocked_since, TimePoint now);
  // A training step begins.
  void step(TimePoint now);

  // Ranks that are to be named, with their share of the window, once each.
  struct Straggler {
    RankSet ranks;  // several when they come as one: ranks of one host
    double share = 0;
    double seconds_per_step = 0;
  };
  std::optional<Straggler> take();

  // What the others waited for each rank in the last window, in seconds; and how many windows have ended.
  const std::map<Rank, double>& seconds() const { return last_seconds_; }
  std::uint64_t windows() const { return windows_; }

 private:
  static constexpr std::uint64_t kSteps = 20;
  static constexpr std::chrono::seconds kTime{1};
  static constexpr double kLeastPerStep = 1e-3;  // seconds: below it is how threads are scheduled

  struct Cost {
    RankSet ranks;
    std::chrono::nanoseconds blocked{0};
    TimePoint blocked_until{};
    std::chrono::nanoseconds late{0};
    std::uint64_t late_operations = 0;
  };
  void end_window(TimePoint now);

  double share_;
  TimePoint begin_{};
  std::uint64_t steps_ = 0;
  std::uint64_t windows_ = 0;
  std::uint64_t unblocked_ = 0;  // operations in which nobody was blocked
  std::map<Rank, Cost> costs_;   // by the first of `ranks`
  std::set<Rank> over_;          // in the window before
  std::set<Rank> named_;
  std::vector<Straggler> found_;
  std::map<Rank, double> last_seconds_;
};

// A sentence for the user.
std::string straggler_text(const Stragglers::Straggler& straggler, const Topology& topology);

}  // namespace hvd
