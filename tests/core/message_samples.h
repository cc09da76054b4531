// Messages for tests of the codec and of the framing: every kind of message and entry, and random
// ones.
#pragma once

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "wire/messages.h"

namespace hvd::samples {

class RandomMessages {
 public:
  explicit RandomMessages(std::uint64_t seed) : random_(seed) {}

  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  bool coin() { return below(2) == 1; }
  std::string text() {
    return std::string(static_cast<std::size_t>(below(20)), char('a' + below(26)));
  }
  std::int64_t large() { return static_cast<std::int64_t>(random_() >> (1 + below(63))); }

  RankSet ranks() {
    std::vector<Rank> list;
    for (int i = below(6); i > 0; --i) list.push_back(below(40));
    return RankSet::of(list);
  }

  Request request() {
    Request r;
    r.kind = static_cast<Collective>(below(kCollectiveCount));
    r.name = text();
    r.process_set = below(5);
    r.dtype = static_cast<DataType>(below(kDataTypeCount));
    r.op = static_cast<ReduceOp>(below(6));
    r.root = below(8) - 1;
    r.device = below(3) - 1;
    r.prescale = below(100) / 7.0;
    r.postscale = coin() ? 1.0 : std::numeric_limits<double>::infinity();
    for (int i = below(5); i > 0; --i) r.shape.push_back(large());
    r.group = coin() ? text() : "";
    r.group_size = below(9);
    r.cacheable = coin();
    for (int i = below(4); i > 0; --i) r.ranks.push_back(below(9) - 1);
    r.target_set = below(4) - 1;
    return r;
  }

  UpMessage up() {
    UpMessage message;
    for (int i = below(4); i > 0; --i) {
      Announcement a;
      if (coin()) {
        a.what = static_cast<CacheId>(random_());
      } else {
        a.what = request();
      }
      a.ranks = ranks();
      a.urgent = coin();
      message.announcements.push_back(std::move(a));
    }
    for (int i = below(3); i > 0; --i) message.urgent.push_back({below(3), text()});
    message.shutdown = coin();
    if (coin()) message.timeline.push_back(timeline());
    return message;
  }

  TimelineCommand timeline() {
    return {below(9), static_cast<std::uint64_t>(below(99)), text(), coin()};
  }

  AnswerMessage answer() {
    AnswerMessage message{static_cast<std::uint32_t>(below(9)), below(9), {}, {}, text()};
    for (int i = below(3); i > 0; --i) message.in_flight.push_back({below(3), text(), 0.5});
    for (int i = below(3); i > 0; --i) message.blocked.push_back({below(3), text(), 60});
    return message;
  }

  ExecuteEntry execute() {
    ExecuteEntry entry;
    for (int i = 1 + below(3); i > 0; --i) {
      ResponseItem item;
      if (coin()) item.id = static_cast<CacheId>(below(1000));
      if (!item.id || coin()) item.request = request();
      entry.items.push_back(std::move(item));
    }
    return entry;
  }

  LogEntry entry(int kind) {
    switch (kind) {
      case 0:
        return execute();
      case 1:
        return FailEntry{below(3), {text(), text()}, text()};
      case 2:
        return EvictEntry{{1, static_cast<CacheId>(below(1000))}};
      case 3:
        return AddProcessSetEntry{text(), below(9), {0, below(9)}};
      case 4:
        return RemoveProcessSetEntry{text(), below(9)};
      case 5:
        return JoinedEntry{below(9)};
      case 6:
        return TimelineEntry{timeline(), text()};
      default:
        return ShutdownEntry{text()};
    }
  }

  Message message() {
    switch (below(8)) {
      case 6:
        return InquiryMessage{static_cast<std::uint32_t>(below(9)), ranks(), text()};
      case 7:
        return answer();
      case 0:
        return AbortMessage{below(9) - 1, text()};
      case 1:
        return GoodbyeMessage{};
      case 2:
      case 3:
        return up();
      default: {
        DownMessage down;
        for (int i = below(5); i > 0; --i) down.entries.push_back(entry(below(8)));
        return down;
      }
    }
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace hvd::samples
