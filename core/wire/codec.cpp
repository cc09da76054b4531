// Codec: one description of each message's fields (`describe`) serves both directions, so that what
// is written and what is read can't drift apart. Writer and Reader differ in what a field means to
// them.
#include "wire/codec.h"

#include <bit>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

namespace hvd {

namespace {

template <typename T, typename U>
concept Is = std::is_same_v<std::remove_const_t<T>, U>;

template <typename C, Is<RankRange> T>
void describe(C& c, T& v) {
  c(v.first), c(v.count);
}

template <typename C, Is<Request> T>
void describe(C& c, T& v) {
  c(v.kind), c(v.name), c(v.process_set), c(v.dtype), c(v.op), c(v.root), c(v.device);
  c(v.prescale), c(v.postscale), c(v.shape), c(v.group), c(v.group_size), c(v.cacheable);
  c(v.ranks), c(v.target_set);
}

template <typename C, Is<Announcement> T>
void describe(C& c, T& v) {
  c(v.what), c(v.ranks), c(v.urgent);
}

template <typename C, Is<UrgentMark> T>
void describe(C& c, T& v) {
  c(v.process_set), c(v.name);
}

template <typename C, Is<TimelineCommand> T>
void describe(C& c, T& v) {
  c(v.rank), c(v.number), c(v.path), c(v.mark_cycles);
}

template <typename C, Is<UpMessage> T>
void describe(C& c, T& v) {
  c(v.announcements), c(v.urgent), c(v.shutdown), c(v.timeline);
}

template <typename C, Is<ResponseItem> T>
void describe(C& c, T& v) {
  c(v.id), c(v.request);
}

template <typename C, Is<ExecuteEntry> T>
void describe(C& c, T& v) {
  c(v.items);
}

template <typename C, Is<FailEntry> T>
void describe(C& c, T& v) {
  c(v.process_set), c(v.names), c(v.text);
}

template <typename C, Is<EvictEntry> T>
void describe(C& c, T& v) {
  c(v.ids);
}

template <typename C, Is<AddProcessSetEntry> T>
void describe(C& c, T& v) {
  c(v.name), c(v.id), c(v.ranks);
}

template <typename C, Is<RemoveProcessSetEntry> T>
void describe(C& c, T& v) {
  c(v.name), c(v.id);
}

template <typename C, Is<JoinedEntry> T>
void describe(C& c, T& v) {
  c(v.last_rank);
}

template <typename C, Is<ShutdownEntry> T>
void describe(C& c, T& v) {
  c(v.text);
}

template <typename C, Is<TimelineEntry> T>
void describe(C& c, T& v) {
  c(v.command), c(v.error);
}

template <typename C, Is<DownMessage> T>
void describe(C& c, T& v) {
  c(v.entries);
}

template <typename C, Is<AbortMessage> T>
void describe(C& c, T& v) {
  c(v.culprit), c(v.text);
}

template <typename C, Is<GoodbyeMessage> T>
void describe(C&, T&) {}

template <typename C, Is<InquiryMessage> T>
void describe(C& c, T& v) {
  c(v.number), c(v.ranks), c(v.text);
}

template <typename C, Is<OperationInFlight> T>
void describe(C& c, T& v) {
  c(v.process_set), c(v.name), c(v.seconds);
}

template <typename C, Is<AnswerMessage> T>
void describe(C& c, T& v) {
  c(v.number), c(v.rank), c(v.in_flight), c(v.blocked), c(v.stacks);
}

// How many values an enumeration has; the reader refuses others.
constexpr int count_of(Collective) { return kCollectiveCount; }
constexpr int count_of(DataType) { return kDataTypeCount; }
constexpr int count_of(ReduceOp) { return static_cast<int>(ReduceOp::kProduct) + 1; }

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}

  template <typename T>
  void operator()(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      (*this)(static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (Is<T, bool>) {
      out_.push_back(value ? std::byte{1} : std::byte{0});
    } else if constexpr (std::is_integral_v<T>) {
      auto bits = static_cast<std::make_unsigned_t<T>>(value);
      for (std::size_t i = 0; i < sizeof(T); ++i) {
        out_.push_back(static_cast<std::byte>(bits & 0xff));
        if constexpr (sizeof(T) > 1) bits >>= 8;
      }
    } else {
      describe(*this, value);
    }
  }
  void operator()(double value) { (*this)(std::bit_cast<std::uint64_t>(value)); }
  void operator()(const std::string& text) {
    (*this)(std::uint64_t{text.size()});
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    out_.insert(out_.end(), bytes, bytes + text.size());
  }
  void operator()(const RankSet& ranks) { (*this)(ranks.ranges()); }
  template <typename T>
  void operator()(const std::vector<T>& list) {
    (*this)(std::uint64_t{list.size()});
    for (const T& element : list) (*this)(element);
  }
  template <typename T>
  void operator()(const std::optional<T>& value) {
    (*this)(value.has_value());
    if (value) (*this)(*value);
  }
  template <typename... T>
  void operator()(const std::variant<T...>& value) {
    (*this)(static_cast<std::uint8_t>(value.index()));
    std::visit(*this, value);
  }

 private:
  std::vector<std::byte>& out_;
};

// Refuses at the first fault and from then on reads zeros, so that no caller needs to check in
// between.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> rest) : rest_(rest) {}

  const std::string& fault() const { return fault_; }
  bool at_end() const { return rest_.empty(); }
  void refuse(const char* why) {
    if (fault_.empty()) fault_ = why;
    rest_ = {};
  }

  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> number = 0;
      (*this)(number);
      if (number >= count_of(T{})) return refuse("an enumeration has an unknown value");
      value = static_cast<T>(number);
    } else if constexpr (Is<T, bool>) {
      std::uint8_t number = 0;
      (*this)(number);
      if (number > 1) return refuse("a flag is neither 0 nor 1");
      value = number == 1;
    } else if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(integer<std::make_unsigned_t<T>>());
    } else {
      describe(*this, value);
      check(value);
    }
  }
  void operator()(double& value) { value = std::bit_cast<double>(integer<std::uint64_t>()); }
  void operator()(std::string& text) {
    const std::size_t size = count();
    text.assign(reinterpret_cast<const char*>(rest_.data()), size);
    rest_ = rest_.subspan(size);
  }
  void operator()(RankSet& ranks) {
    std::vector<RankRange> ranges;
    (*this)(ranges);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const RankRange& range = ranges[i];
      const bool sane = range.first >= 0 && range.count >= 1 &&
                        range.count <= std::numeric_limits<Rank>::max() - range.first;
      const bool canonical = i == 0 || ranges[i - 1].first + ranges[i - 1].count < range.first;
      if (!sane || !canonical) return refuse("a set of ranks is malformed");
    }
    ranks = RankSet(std::move(ranges));
  }
  template <typename T>
  void operator()(std::vector<T>& list) {
    // No reserve: the list grows as its elements, of at least one byte each, prove to be there.
    for (std::size_t left = count(); left > 0 && fault_.empty(); --left)
      (*this)(list.emplace_back());
  }
  template <typename T>
  void operator()(std::optional<T>& value) {
    bool present = false;
    (*this)(present);
    if (present) (*this)(value.emplace());
  }
  template <typename... T>
  void operator()(std::variant<T...>& value) {
    std::uint8_t index = 0;
    (*this)(index);
    if (index >= sizeof...(T)) return refuse("a message or entry is of an unknown kind");
    alternative(value, index, std::index_sequence_for<T...>());
  }

 private:
  template <typename U>
  U integer() {
    if (rest_.size() < sizeof(U)) {
      refuse("it ends too early");
      return 0;
    }
    U bits = 0;
    for (std::size_t i = 0; i < sizeof(U); ++i) {
      bits = static_cast<U>(bits | static_cast<U>(static_cast<U>(rest_[i]) << (8 * i)));
    }
    rest_ = rest_.subspan(sizeof(U));
    return bits;
  }

  // A count of elements that take at least a byte each.
  std::size_t count() {
    const auto number = integer<std::uint64_t>();
    if (number > rest_.size()) {
      refuse("a count is larger than the message");
      return 0;
    }
    return static_cast<std::size_t>(number);
  }

  template <typename V, std::size_t... I>
  void alternative(V& value, std::uint8_t index, std::index_sequence<I...>) {
    ((index == I ? (*this)(value.template emplace<I>()) : void()), ...);
  }

  template <typename T>
  void check(const T& value) {
    if constexpr (Is<T, ResponseItem>) {
      if (!value.id && !value.request) refuse("a tensor of a response has neither id nor request");
    } else if constexpr (Is<T, Request>) {
      for (const std::int64_t dimension : value.shape) {
        if (dimension < 0) refuse("a dimension is negative");
      }
    }
  }

  std::span<const std::byte> rest_;
  std::string fault_;
};

}  // namespace

void encode(const Message& message, std::vector<std::byte>& out) {
  Writer writer(out);
  writer(kWireVersion);
  writer(message);
}

std::vector<std::byte> encode(const Message& message) {
  std::vector<std::byte> out;
  encode(message, out);
  return out;
}

Status decode(std::span<const std::byte> bytes, Message& out) {
  Reader reader(bytes);
  std::uint8_t version = 0;
  reader(version);
  if (reader.fault().empty() && version != kWireVersion) {
    return Status::aborted("malformed control message: it is of version " +
                           std::to_string(version) + ", but this rank speaks version " +
                           std::to_string(kWireVersion) +
                           "; install the same version of horovod on all hosts");
  }
  reader(out);
  if (reader.fault().empty() && !reader.at_end()) reader.refuse("bytes are left over at its end");
  if (!reader.fault().empty()) {
    return Status::aborted("malformed control message: " + reader.fault());
  }
  return Status::ok();
}

}  // namespace hvd
