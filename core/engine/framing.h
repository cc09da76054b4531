// MessageStream: control messages over a Channel, each with its length in front. Never blocks.
//
// Use: `queue` what is to be said, `flush` when the channel may take bytes (again when it becomes
// writable while `has_backlog`), `receive` until it gives no message. An error is final: the bytes
// that follow can't be trusted, drop the connection. Bytes from the peer never cause an allocation
// before they are there: the buffer grows only when it is full, and never beyond one message of
// kMaxMessageBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/channel.h"
#include "wire/messages.h"

namespace hvd {

// Longest encoded message that is sent or accepted. Longer up and down messages are split.
inline constexpr std::size_t kMaxMessageBytes = 32 << 20;

class MessageStream {
 public:
  explicit MessageStream(Channel& channel) : channel_(channel) {}

  // Encodes `message` behind what is queued already. Not ok: it can't be split small enough.
  Status queue(const Message& message);
  // The same with bytes that `encode` made, for a message that goes to several children.
  Status queue(std::span<const std::byte> encoded);

  // Sends as much as fits now. Not ok: the channel has failed.
  Status flush();
  bool has_backlog() const { return sent_ < outgoing_.size(); }
  std::size_t backlog_bytes() const { return outgoing_.size() - sent_; }

  // Ok and a message; ok and nullopt: nothing complete there now; not ok: the peer closed the
  // channel (after everything that it sent before was given out), or sent what is no message.
  Status receive(std::optional<Message>& message);

 private:
  Status queue_halves(const Message& message);
  Status next_message(std::optional<Message>& message);
  bool fill();

  Channel& channel_;
  std::vector<std::byte> outgoing_;
  std::size_t sent_ = 0;             // bytes of `outgoing_` that the channel has taken
  std::vector<std::byte> incoming_;  // bytes [begin_, end_) have arrived and are not yet decoded
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  Status failure_;
};

}  // namespace hvd
