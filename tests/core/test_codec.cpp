// The codec gives back what went in, and stands any bytes.
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "message_samples.h"
#include "testing.h"
#include "wire/codec.h"

using namespace hvd;
using hvd::samples::RandomMessages;

namespace {

using Bytes = std::vector<std::byte>;

template <typename T>
T round_trip(const T& value) {
  Message out;
  const Status status = decode(encode(Message(value)), out);
  REQUIRE_MESSAGE(status.is_ok(), status.text());
  REQUIRE(std::holds_alternative<T>(out));
  return std::get<T>(out);
}

Bytes patched(Bytes bytes, std::size_t at, std::uint64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) {
    bytes[at + i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
  }
  return bytes;
}

Request large_request() {
  Request r;
  r.name = "layer.0/weight \xc3\xa4";
  r.kind = Collective::kAllgather;
  r.dtype = DataType::kComplex128;
  r.prescale = 0.1;
  r.postscale = -0.0;
  r.shape = {std::numeric_limits<std::int64_t>::max(), 0, std::int64_t{1} << 33};
  r.group = "g";
  r.group_size = 2;
  r.cacheable = false;
  r.ranks = {3, 1};
  r.target_set = 7;
  return r;
}

}  // namespace

TEST_CASE("a full request keeps every field, with 64-bit dimensions") {
  UpMessage up;
  up.announcements.push_back({large_request(), RankSet::of({0, 1, 2, 9}), true});
  up.announcements.push_back({CacheId{0xfffffffe}, RankSet(5), false});
  up.urgent.push_back({3, "x"});
  up.shutdown = true;
  const UpMessage back = round_trip(up);
  REQUIRE(back.announcements.size() == 2);
  CHECK(std::get<Request>(back.announcements[0].what) == large_request());
  CHECK(back.announcements[0].ranks == RankSet::of({0, 1, 2, 9}));
  CHECK(back.announcements[0].urgent);
  CHECK(std::get<CacheId>(back.announcements[1].what) == 0xfffffffe);
  CHECK(back.urgent.front() == UrgentMark{3, "x"});
  CHECK(back.shutdown);
}

TEST_CASE("every kind of message and entry survives the trip") {
  DownMessage down;
  RandomMessages random(1);
  for (int kind = 0; kind < 8; ++kind) down.entries.push_back(random.entry(kind));
  down.entries.push_back(ExecuteEntry{{{CacheId{4}, large_request()}, {CacheId{5}, {}}}});
  const DownMessage back = round_trip(down);
  REQUIRE(back.entries.size() == down.entries.size());
  for (std::size_t i = 0; i < back.entries.size(); ++i) {
    CHECK(back.entries[i].index() == down.entries[i].index());
  }
  const auto& items = std::get<ExecuteEntry>(back.entries.back()).items;
  CHECK(items[0].id == CacheId{4});
  CHECK(items[0].request == large_request());
  CHECK_FALSE(items[1].request.has_value());

  CHECK(round_trip(AbortMessage{3, "gone"}).text == "gone");
  round_trip(GoodbyeMessage{});
  const AnswerMessage answer = random.answer();
  CHECK(encode(round_trip(answer)) == encode(Message(answer)));
  CHECK(round_trip(InquiryMessage{3, RankSet::of({1, 4}), "why"}).ranks == RankSet::of({1, 4}));
  UpMessage command;
  command.timeline.push_back({2, 7, "/t.json", true});
  CHECK_FALSE(command.empty());
  CHECK(round_trip(command).timeline == command.timeline);
  CHECK(round_trip(UpMessage{}).empty());
}

TEST_CASE("a message has one encoding") {
  RandomMessages random(2);
  for (int i = 0; i < 2000; ++i) {
    const Bytes bytes = encode(random.message());
    Message out;
    const Status status = decode(bytes, out);
    REQUIRE_MESSAGE(status.is_ok(), status.text());
    REQUIRE(encode(out) == bytes);
  }
}

TEST_CASE("a message that ends early or has bytes left over is refused") {
  RandomMessages random(3);
  Message out;
  for (int i = 0; i < 200; ++i) {
    Bytes bytes = encode(random.message());
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      CHECK_FALSE(decode(std::span(bytes).first(length), out).is_ok());
    }
    bytes.push_back(std::byte{0});
    CHECK_FALSE(decode(bytes, out).is_ok());
  }
}

TEST_CASE("counts beyond the message cause an error, not an allocation") {
  const Bytes abort = encode(Message(AbortMessage{1, "text"}));
  const std::size_t count_at = 2 + 4;
  Message out;
  for (const std::uint64_t count :
       {std::uint64_t{5}, std::uint64_t{1} << 30, std::uint64_t{1} << 62,
        std::numeric_limits<std::uint64_t>::max()}) {
    CHECK_FALSE(decode(patched(abort, count_at, count, 8), out).is_ok());
  }
  CHECK(decode(patched(abort, count_at, 4, 8), out).is_ok());
}

TEST_CASE("another version and unknown values are named in the error") {
  Message out;
  const Bytes goodbye = encode(Message(GoodbyeMessage{}));
  CHECK(decode(patched(goodbye, 0, 9, 1), out).text().find("version 9") != std::string::npos);
  CHECK(decode(patched(goodbye, 1, 6, 1), out).text().find("unknown kind") != std::string::npos);

  UpMessage up;
  up.announcements.push_back({Request{}, RankSet(0), false});
  const Bytes bytes = encode(Message(up));
  const std::size_t kind_at = 2 + 8 + 1;
  CHECK_FALSE(decode(patched(bytes, kind_at, kCollectiveCount, 1), out).is_ok());
  CHECK(decode(patched(bytes, kind_at, kCollectiveCount - 1, 1), out).is_ok());
}

TEST_CASE("malformed sets of ranks are refused") {
  UpMessage up;
  up.announcements.push_back({CacheId{1}, RankSet::of({2, 5}), false});
  const Bytes bytes = encode(Message(up));
  const std::size_t first_at = 2 + 8 + 1 + 4 + 8;
  Message out;
  CHECK(decode(bytes, out).is_ok());
  CHECK_FALSE(decode(patched(bytes, first_at, 5, 4), out).is_ok());           // twice
  CHECK_FALSE(decode(patched(bytes, first_at, 4, 4), out).is_ok());           // should be one range
  CHECK_FALSE(decode(patched(bytes, first_at, 0xffffffff, 4), out).is_ok());  // negative
  CHECK_FALSE(decode(patched(bytes, first_at + 4, 0, 4), out).is_ok());       // empty
  CHECK_FALSE(
      decode(patched(bytes, first_at + 12, 0x7fffffff, 4), out).is_ok());  // beyond all ranks
}

TEST_CASE("random damage is refused or decodes to another well-formed message") {
  std::mt19937_64 random(4);
  RandomMessages messages(5);
  Message out;
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes = encode(messages.message());
    for (auto flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    if (random() % 4 == 0) bytes.insert(bytes.end(), random() % 9, std::byte{0});
    if (decode(bytes, out).is_ok()) REQUIRE(encode(out) == bytes);
  }
}
