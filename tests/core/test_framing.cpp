// Messages over a channel: in order whatever fits at a time, bounded, and garbage is an error.
#include <string>
#include <vector>

#include "engine/framing.h"
#include "message_samples.h"
#include "testing.h"
#include "transport/memory_channel.h"
#include "wire/codec.h"

using namespace hvd;
using hvd::samples::RandomMessages;

namespace {

std::size_t send_raw(Channel& channel, const std::vector<std::byte>& bytes) {
  const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return channel.try_send({&piece, 1});
}

std::vector<std::byte> header(std::uint32_t length) {
  std::vector<std::byte> bytes(4);
  for (std::size_t i = 0; i < 4; ++i) bytes[i] = static_cast<std::byte>(length >> (8 * i));
  return bytes;
}

}  // namespace

TEST_CASE("messages arrive in order through a channel that holds a few bytes") {
  auto [left, right] = MemoryChannel::make_pair(7);
  MessageStream sender(*left);
  MessageStream receiver(*right);
  RandomMessages random(1);
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> received;
  for (int i = 0; i < 200; ++i) {
    const Message message = random.message();
    sent.push_back(encode(message));
    if (i % 2 == 0) {
      REQUIRE(sender.queue(message).is_ok());
    } else {
      REQUIRE(sender.queue(sent.back()).is_ok());
    }
  }
  while (received.size() < sent.size()) {
    REQUIRE(sender.flush().is_ok());
    std::optional<Message> message;
    REQUIRE(receiver.receive(message).is_ok());
    if (message) received.push_back(encode(*message));
  }
  CHECK(received == sent);
  CHECK_FALSE(sender.has_backlog());
}

TEST_CASE("what was sent before a close is still received, then the close is an error") {
  auto [left, right] = MemoryChannel::make_pair(1 << 16);
  MessageStream sender(*left);
  MessageStream receiver(*right);
  REQUIRE(sender.queue(Message(GoodbyeMessage{})).is_ok());
  REQUIRE(sender.flush().is_ok());
  left->close();
  std::optional<Message> message;
  CHECK(receiver.receive(message).is_ok());
  CHECK(message.has_value());
  CHECK_FALSE(receiver.receive(message).is_ok());
  CHECK_FALSE(message.has_value());
}

TEST_CASE("a close in the middle of a message says so") {
  auto [left, right] = MemoryChannel::make_pair(1 << 16);
  send_raw(*left, header(100));
  left->close();
  MessageStream receiver(*right);
  std::optional<Message> message;
  const Status status = receiver.receive(message);
  CHECK(status.text().find("in the middle") != std::string::npos);
}

TEST_CASE("sending to a closed peer is an error") {
  auto [left, right] = MemoryChannel::make_pair(1 << 16);
  right->close();
  MessageStream sender(*left);
  REQUIRE(sender.queue(Message(GoodbyeMessage{})).is_ok());
  CHECK_FALSE(sender.flush().is_ok());
}

TEST_CASE("garbage and absurd lengths are final errors") {
  for (const std::uint32_t length : {0xffffffffu, 0x40000000u, 3u, 0u}) {
    CAPTURE(length);
    auto [left, right] = MemoryChannel::make_pair(1 << 16);
    send_raw(*left, header(length));
    send_raw(*left, {std::byte{'G'}, std::byte{'E'}, std::byte{'T'}});
    MessageStream receiver(*right);
    std::optional<Message> message;
    CHECK_FALSE(receiver.receive(message).is_ok());
    const auto goodbye = encode(Message(GoodbyeMessage{}));
    send_raw(*left, header(static_cast<std::uint32_t>(goodbye.size())));
    send_raw(*left, goodbye);
    CHECK_FALSE(receiver.receive(message).is_ok());
    CHECK_FALSE(message.has_value());
  }
}

TEST_CASE("a message beyond the limit is split in order") {
  auto [left, right] = MemoryChannel::make_pair(std::size_t{4} * kMaxMessageBytes);
  MessageStream sender(*left);
  MessageStream receiver(*right);
  UpMessage up;
  for (int i = 0; i < 5; ++i) {
    Request r;
    r.name = std::string(kMaxMessageBytes / 3, char('a' + i));
    up.announcements.push_back({r, RankSet(0), false});
  }
  up.shutdown = true;
  REQUIRE(sender.queue(Message(up)).is_ok());
  REQUIRE(sender.flush().is_ok());
  std::string order;
  std::optional<Message> message;
  for (;;) {
    REQUIRE(receiver.receive(message).is_ok());
    if (!message) break;
    const auto& part = std::get<UpMessage>(*message);
    for (const Announcement& a : part.announcements) order += std::get<Request>(a.what).name[0];
    if (part.shutdown) order += '.';
  }
  CHECK(order == "abcde.");

  AbortMessage abort{0, std::string(kMaxMessageBytes, 'x')};
  CHECK_FALSE(sender.queue(Message(abort)).is_ok());
  CHECK_FALSE(sender.has_backlog());
}
