#include "engine/stall_report.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

namespace hvd {

namespace {

constexpr Rank kAsked = 16;         // ranks whose stacks one reads
constexpr std::size_t kListed = 5;  // names in a sentence
constexpr std::size_t kStackBytes = 16 << 10;

std::string quoted(std::string_view name) { return "'" + std::string(name) + "'"; }

std::string seconds_text(double seconds) {
  std::string text = std::to_string(seconds < 0 ? 0.0 : seconds);
  text.resize(text.find('.') + 2);
  return text + " s";
}

std::string names_text(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kListed; ++i) {
    text += (i > 0 ? ", " : "") + quoted(names[i]);
  }
  if (names.size() > kListed) text += " and " + std::to_string(names.size() - kListed) + " more";
  return text;
}

std::string operations_text(const std::vector<OperationInFlight>& operations) {
  std::string text;
  for (std::size_t i = 0; i < operations.size() && i < kListed; ++i) {
    text += (i > 0 ? ", " : "") + quoted(operations[i].name) + " (since " +
            seconds_text(operations[i].seconds) + ")";
  }
  if (operations.size() > kListed) {
    text += " and " + std::to_string(operations.size() - kListed) + " more";
  }
  return text;
}

std::string indented(std::string_view text) {
  std::string out;
  if (text.size() > kStackBytes) text = text.substr(0, kStackBytes);
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    out += "    " + std::string(line) + "\n";
  }
  return out;
}

std::vector<std::string> missing_names(const std::vector<StalledOperation>& stalled, Rank rank) {
  std::vector<std::string> names;
  for (const StalledOperation& operation : stalled) {
    if (operation.missing.contains(rank)) names.push_back(operation.name);
  }
  return names;
}

// What this rank has submitted and others of `operation` have not, under the most similar name.
const StalledOperation* counterpart(const StalledOperation& operation, Rank rank,
                                    const std::vector<StalledOperation>& stalled) {
  const StalledOperation* best = nullptr;
  std::size_t best_likeness = 0;
  for (const StalledOperation& other : stalled) {
    if (!other.announced.contains(rank) || !other.missing.intersects(operation.announced)) continue;
    const std::size_t found = likeness(operation.name, other.name);
    if (found > best_likeness) {
      best = &other;
      best_likeness = found;
    }
  }
  return best;
}

std::string pairs_text(const std::vector<StalledOperation>& stalled, Rank rank) {
  std::string text;
  std::size_t count = 0;
  for (const StalledOperation& operation : stalled) {
    if (!operation.missing.contains(rank)) continue;
    const StalledOperation* other = counterpart(operation, rank, stalled);
    if (other == nullptr) continue;
    if (++count > 3) return text + "  ...\n";
    text += "  " + quoted(other->name) + " of rank " + std::to_string(rank) + " may be " +
            quoted(operation.name) + " of rank " + to_string(operation.announced) + ".\n";
  }
  if (count == 0) return text;
  return "  Names that differ only in a prefix, a suffix or a counter (did rank " +
         std::to_string(rank) + " build its model twice, or after something else?):\n" + text;
}

bool others_lack(const std::vector<StalledOperation>& stalled, const OperationInFlight& operation) {
  return std::ranges::any_of(stalled, [&](const StalledOperation& other) {
    return other.name == operation.name && other.process_set == operation.process_set;
  });
}

std::string verdict(const AnswerMessage& answer, const std::vector<StalledOperation>& stalled) {
  const std::string pairs = pairs_text(stalled, answer.rank);
  if (!pairs.empty()) return pairs;
  const bool blocked_elsewhere =
      std::ranges::any_of(answer.blocked, [&](const auto& b) { return others_lack(stalled, b); });
  if (blocked_elsewhere) {
    return "  It waits for what others have not submitted, as they wait for it: the ranks call "
           "blocking "
           "operations in different orders, or have different numbers of batches (then use "
           "hvd.join()).\n";
  }
  if (answer.in_flight.empty()) {
    return "  It has nothing in flight: it computes, or waits for something else; its stack says "
           "where. An "
           "operation that only some ranks call (under `if hvd.rank() == 0`) must be called by "
           "all.\n";
  }
  return "";
}

std::string answer_text(const AnswerMessage& answer, const std::vector<StalledOperation>& stalled,
                        const Topology& topology) {
  std::string text = topology.describe(answer.rank) + " is alive.";
  if (!answer.blocked.empty()) text += " It is blocked in " + operations_text(answer.blocked) + ".";
  if (answer.blocked.empty() && !answer.in_flight.empty()) {
    text += " It has in flight " + operations_text(answer.in_flight) + ".";
  }
  const auto missing = missing_names(stalled, answer.rank);
  if (!missing.empty()) text += " It has not submitted " + names_text(missing) + ".";
  text += "\n" + verdict(answer, stalled);
  if (!answer.stacks.empty()) text += "  Its Python stacks:\n" + indented(answer.stacks);
  return text;
}

std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin < name.size();) {
    std::size_t end = begin;
    const auto is_separator = [&](std::size_t i) { return name[i] == '/' || name[i] == '.'; };
    while (end < name.size() && !is_separator(end)) ++end;
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Without a counter at its end: "dense_12" and "dense" are alike.
std::string_view stem(std::string_view part) {
  std::size_t end = part.size();
  while (end > 0 && std::isdigit(static_cast<unsigned char>(part[end - 1]))) --end;
  if (end < part.size() && end > 0 && (part[end - 1] == '_' || part[end - 1] == '-')) --end;
  return end == 0 ? part : part.substr(0, end);
}

bool equal_but_counters(std::string_view a, std::string_view b) {
  auto left = parts_of(a);
  auto right = parts_of(b);
  if (left.size() != right.size() || left.empty()) return false;
  const auto is_number = [](std::string_view part) {
    return std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  // The number of an unnamed operation. Elsewhere a part of digits alone is no counter: "layers.0.w".
  if (left.size() > 1 && is_number(left.back()) && is_number(right.back())) {
    left.pop_back();
    right.pop_back();
  }
  return std::ranges::equal(left, right, {}, stem, stem);
}

}  // namespace

std::size_t likeness(std::string_view a, std::string_view b) {
  if (a == b) return 0;
  if (a.size() > b.size()) std::swap(a, b);
  constexpr std::size_t kLeast = 3;
  if (equal_but_counters(a, b)) return std::max(a.size(), kLeast);
  if (a.size() < kLeast) return 0;
  return b.starts_with(a) || b.ends_with(a) ? a.size() : 0;
}

std::string stall_report_text(const std::string& head, const std::vector<StalledOperation>& stalled,
                              const std::vector<AnswerMessage>& answers, const RankSet& silent,
                              const Topology& topology) {
  std::string text = head;
  if (!answers.empty() || !silent.empty()) text += "What the missing ranks are doing:\n";
  for (const AnswerMessage& answer : answers) text += answer_text(answer, stalled, topology);
  for (const RankRange& range : silent.ranges()) {
    for (Rank rank = range.first; rank < range.first + range.count; ++rank) {
      text += topology.describe(rank) +
              " does not answer, and its connections are open: its process is stopped (SIGSTOP, a "
              "debugger), starved or swapped out, or its host has just become unreachable.\n";
    }
  }
  return text;
}

InquiryMessage Inquiry::begin(std::string head, std::vector<StalledOperation> stalled,
                              TimePoint now) {
  active_ = true;
  ++number_;
  head_ = std::move(head);
  stalled_ = std::move(stalled);
  answers_.clear();
  awaited_.clear();
  for (const StalledOperation& operation : stalled_) {
    for (const RankRange& range : operation.missing.ranges()) {
      for (Rank r = range.first; r < range.first + range.count; ++r) {
        if (awaited_.size() < kAsked) awaited_.add(RankSet(r));
      }
    }
  }
  deadline_ = now + kTime;
  return {number_, awaited_, head_};
}

void Inquiry::receive(AnswerMessage answer) {
  if (!active_ || answer.number != number_ || !awaited_.contains(answer.rank)) return;
  awaited_.remove(RankSet(answer.rank));
  answers_.push_back(std::move(answer));
}

std::optional<std::string> Inquiry::take(TimePoint now, const Topology& topology) {
  if (!active_ || (!awaited_.empty() && now < deadline_)) return std::nullopt;
  active_ = false;
  std::ranges::sort(answers_, {}, &AnswerMessage::rank);
  return stall_report_text(head_, stalled_, answers_, awaited_, topology);
}

std::optional<Inquiry::TimePoint> Inquiry::deadline() const {
  return active_ ? std::optional(deadline_) : std::nullopt;
}

}  // namespace hvd
