// MessageStream: four bytes of length, little-endian, then one message of codec.h.
#include "engine/framing.h"

#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "wire/codec.h"

namespace hvd {

namespace {

constexpr std::size_t kHeaderBytes = 4;
constexpr std::size_t kFirstBufferBytes = 16 << 10;
constexpr std::size_t kKeptBufferBytes = 1 << 20;  // larger buffers are given back after use

void store_length(std::size_t length, std::byte* header) {
  for (std::size_t i = 0; i < kHeaderBytes; ++i) {
    header[i] = static_cast<std::byte>((length >> (8 * i)) & 0xff);
  }
}

std::size_t load_length(const std::byte* header) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < kHeaderBytes; ++i) {
    length |= static_cast<std::size_t>(header[i]) << (8 * i);
  }
  return length;
}

template <typename T>
std::vector<T> take_back_half(std::vector<T>& list) {
  const auto middle = list.begin() + static_cast<std::ptrdiff_t>(list.size() / 2);
  std::vector<T> half(std::make_move_iterator(middle), std::make_move_iterator(list.end()));
  list.erase(middle, list.end());
  return half;
}

Status too_long(std::size_t bytes) {
  return Status::aborted("a control message of " + std::to_string(bytes) +
                         " bytes is longer than the limit of " + std::to_string(kMaxMessageBytes) +
                         "; submit fewer tensors in one group");
}

}  // namespace

Status MessageStream::queue(const Message& message) {
  const std::size_t start = outgoing_.size();
  outgoing_.resize(start + kHeaderBytes);
  encode(message, outgoing_);
  const std::size_t length = outgoing_.size() - start - kHeaderBytes;
  if (length > kMaxMessageBytes) {
    outgoing_.resize(start);
    return queue_halves(message);
  }
  store_length(length, outgoing_.data() + start);
  return Status::ok();
}

// The order of announcements and of entries is kept; marks and the wish to shut down go last.
Status MessageStream::queue_halves(const Message& message) {
  if (const auto* up = std::get_if<UpMessage>(&message); up && up->announcements.size() > 1) {
    UpMessage front{up->announcements, {}, false, {}};
    UpMessage back{take_back_half(front.announcements), up->urgent, up->shutdown, up->timeline};
    const Status status = queue(Message(std::move(front)));
    return status.is_ok() ? queue(Message(std::move(back))) : status;
  }
  if (const auto* down = std::get_if<DownMessage>(&message); down && down->entries.size() > 1) {
    DownMessage front = *down;
    DownMessage back{take_back_half(front.entries)};
    const Status status = queue(Message(std::move(front)));
    return status.is_ok() ? queue(Message(std::move(back))) : status;
  }
  return too_long(encode(message).size());
}

Status MessageStream::queue(std::span<const std::byte> encoded) {
  if (encoded.size() > kMaxMessageBytes) {
    Message message;
    const Status status = decode(encoded, message);
    return status.is_ok() ? queue_halves(message) : status;
  }
  const std::size_t start = outgoing_.size();
  outgoing_.resize(start + kHeaderBytes);
  store_length(encoded.size(), outgoing_.data() + start);
  outgoing_.insert(outgoing_.end(), encoded.begin(), encoded.end());
  return Status::ok();
}

Status MessageStream::flush() {
  while (has_backlog()) {
    const iovec rest{outgoing_.data() + sent_, outgoing_.size() - sent_};
    const std::size_t taken = channel_.try_send({&rest, 1});
    sent_ += taken;
    if (taken == 0) {
      if (sent_ > outgoing_.size() / 2) {  // else a backlog that never empties would only grow
        outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<std::ptrdiff_t>(sent_));
        sent_ = 0;
      }
      return channel_.status();
    }
  }
  outgoing_.clear();
  sent_ = 0;
  if (outgoing_.capacity() > kKeptBufferBytes) outgoing_.shrink_to_fit();
  return Status::ok();
}

Status MessageStream::receive(std::optional<Message>& message) {
  message.reset();
  while (failure_.is_ok()) {
    failure_ = next_message(message);
    if (message || !failure_.is_ok()) break;
    // Asked before reading: bytes that arrive together with the close must still be found.
    const Status channel_status = channel_.status();
    if (fill()) continue;
    if (channel_status.is_ok()) break;
    failure_ = begin_ == end_ ? channel_status
                              : Status::aborted(
                                    "the connection ended in the middle of a control "
                                    "message: " +
                                    channel_status.text());
  }
  return failure_;
}

// Decodes the message at the front of what has arrived, if all of it is there.
Status MessageStream::next_message(std::optional<Message>& message) {
  if (end_ - begin_ < kHeaderBytes) return Status::ok();
  const std::size_t length = load_length(incoming_.data() + begin_);
  if (length > kMaxMessageBytes) {
    return Status::aborted("malformed control message: it claims a length of " +
                           std::to_string(length) + " bytes, the limit is " +
                           std::to_string(kMaxMessageBytes));
  }
  if (end_ - begin_ - kHeaderBytes < length) return Status::ok();
  Message decoded;
  const Status status =
      decode(std::span(incoming_).subspan(begin_ + kHeaderBytes, length), decoded);
  if (!status.is_ok()) return status;
  message = std::move(decoded);
  begin_ += kHeaderBytes + length;
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if (incoming_.size() > kKeptBufferBytes) std::vector<std::byte>().swap(incoming_);
  }
  return Status::ok();
}

// Reads once from the channel; false when nothing was there.
bool MessageStream::fill() {
  if (end_ == incoming_.size() && begin_ > 0) {
    std::memmove(incoming_.data(), incoming_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == incoming_.size()) {
    incoming_.resize(incoming_.empty() ? kFirstBufferBytes : 2 * incoming_.size());
  }
  const std::size_t count = channel_.try_receive(std::span(incoming_).subspan(end_));
  end_ += count;
  return count > 0;
}

}  // namespace hvd
