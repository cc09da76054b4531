// Stall: when to report tensors that some ranks announced and others did not, and in what words.
// Pure.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/config.h"
#include "wire/rank_set.h"

namespace hvd {

struct StalledTensor {
  std::string_view name;
  RankSet missing;
  std::chrono::nanoseconds waited{0};
};

// Answers by the clock alone; the caller keeps the tensors. One report covers everything that is
// stalled; reports are at least one warning time apart, so one culprit does not fill the log.
class StallClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit StallClock(const Config& config);

  // When a report falls due, given the oldest tensor that none has covered yet.
  std::optional<TimePoint> report_due(TimePoint oldest_unreported) const;
  // When the job is to be shut down, given the oldest stalled tensor; nullopt: never.
  std::optional<TimePoint> shutdown_due(TimePoint oldest) const;
  void reported(TimePoint now) { last_report_ = now; }

  std::chrono::nanoseconds warning_time() const { return warning_; }
  // Tensors that have waited for so long are in a report that is made anyway: the other half of the same trouble,
  // a moment younger, belongs to it.
  std::chrono::nanoseconds worth_reporting() const { return warning_ / 10 * 9; }

  std::string warning_text(std::span<const StalledTensor> stalled) const;
  std::string shutdown_text(std::span<const StalledTensor> stalled) const;

 private:
  std::string missing_list(std::span<const StalledTensor> stalled) const;

  bool enabled_;
  double warning_seconds_;
  double shutdown_seconds_;
  std::chrono::nanoseconds warning_;
  std::optional<std::chrono::nanoseconds> shutdown_;
  std::optional<TimePoint> last_report_;
};

}  // namespace hvd
