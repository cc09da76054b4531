// Stall: due times and the report of who is missing.
#include "engine/stall.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

namespace hvd {

namespace {

constexpr std::size_t kListedNames = 5;
constexpr std::size_t kListedRanks = 32;

std::chrono::nanoseconds nanoseconds_of(double seconds) {
  constexpr double kLongest = 100.0 * 365 * 24 * 3600;  // stays far from overflow
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::clamp(seconds, 0.0, kLongest)));
}

std::string number(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof(digits), value).ptr};
}

struct MissingRank {
  std::vector<std::string_view> names;
  std::size_t count = 0;
  bool past_shutdown = false;
};

}  // namespace

StallClock::StallClock(const Config& config)
    : enabled_(config.stall_check),
      warning_seconds_(config.stall_warning_seconds),
      shutdown_seconds_(config.stall_shutdown_seconds),
      warning_(nanoseconds_of(config.stall_warning_seconds)) {
  if (shutdown_seconds_ > 0) {
    shutdown_ = std::max(nanoseconds_of(shutdown_seconds_), warning_);
  }
}

std::optional<StallClock::TimePoint> StallClock::report_due(TimePoint oldest_unreported) const {
  if (!enabled_) return std::nullopt;
  const TimePoint due = oldest_unreported + warning_;
  return last_report_ ? std::max(due, *last_report_ + warning_) : due;
}

std::optional<StallClock::TimePoint> StallClock::shutdown_due(TimePoint oldest) const {
  if (!enabled_ || !shutdown_) return std::nullopt;
  return oldest + *shutdown_;
}

std::string StallClock::warning_text(std::span<const StalledTensor> stalled) const {
  return "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of "
         "ranks and are waiting for remainder of ranks for more than " +
         number(warning_seconds_) +
         " seconds. This may indicate that different ranks are trying to submit different tensors "
         "or that only subset of ranks is submitting tensors, which will cause deadlock. \n"
         "Missing ranks:\n" +
         missing_list(stalled);
}

std::string StallClock::shutdown_text(std::span<const StalledTensor> stalled) const {
  return "One or more rank (marked by \"!\") is stalled for longer than " +
         number(shutdown_seconds_) + " seconds. Will shutdown.\nMissing ranks:\n" +
         missing_list(stalled);
}

std::string StallClock::missing_list(std::span<const StalledTensor> stalled) const {
  std::map<Rank, MissingRank> by_rank;
  for (const StalledTensor& tensor : stalled) {
    std::size_t listed = 0;
    for (const RankRange& range : tensor.missing.ranges()) {
      for (Rank r = range.first; r < range.first + range.count && listed <= kListedRanks; ++r) {
        ++listed;
        MissingRank& rank = by_rank[r];
        if (rank.count++ < kListedNames) rank.names.push_back(tensor.name);
        if (shutdown_ && tensor.waited >= *shutdown_) rank.past_shutdown = true;
      }
    }
  }
  std::string text;
  std::size_t lines = 0;
  for (const auto& [rank, missing] : by_rank) {
    if (lines++ == kListedRanks) return text + "...\n";
    text += std::to_string(rank) + (missing.past_shutdown ? "!: [" : ": [");
    for (std::size_t i = 0; i < missing.names.size(); ++i) {
      if (i > 0) text += ", ";
      text += missing.names[i];
    }
    if (missing.count > kListedNames) text += " ...";
    text += "]\n";
  }
  return text;
}

}  // namespace hvd
