// The report of a stall: what is missing, and what the ranks say that they are doing. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "wire/messages.h"

namespace hvd {

// An operation that some ranks have announced and others have not.
struct StalledOperation {
  ProcessSetId process_set = kGlobalProcessSet;
  std::string name;
  Collective kind = Collective::kAllreduce;
  RankSet announced;
  RankSet missing;
};

// How alike two names are if they differ only at one end or in one counter in between: the length of what they
// share, or 0. "grad/dense" and "grad/dense_1", "model.w" and "model_1.w", "a.w" and "module.a.w".
std::size_t likeness(std::string_view a, std::string_view b);

// `head`: the stall inspector's own text. `silent`: asked, but gave no answer in time.
std::string stall_report_text(const std::string& head, const std::vector<StalledOperation>& stalled,
                              const std::vector<AnswerMessage>& answers, const RankSet& silent,
                              const Topology& topology);

// Inquiry: the root's questions to the ranks about one stall, and the answers so far.
class Inquiry {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // How long a rank may take to answer: longer than it takes to get Python stacks by a signal.
  static constexpr std::chrono::milliseconds kTime{2500};

  // Begins one; returns what to ask. One that is under way is given up.
  InquiryMessage begin(std::string head, std::vector<StalledOperation> stalled, TimePoint now);
  void receive(AnswerMessage answer);
  bool is_active() const { return active_; }
  // The report, when all have answered or the time is over; once.
  std::optional<std::string> take(TimePoint now, const Topology& topology);
  std::optional<TimePoint> deadline() const;

 private:
  bool active_ = false;
  std::uint32_t number_ = 0;
  std::string head_;
  std::vector<StalledOperation> stalled_;
  std::vector<AnswerMessage> answers_;
  RankSet awaited_;
  TimePoint deadline_{};
};

}  // namespace hvd
