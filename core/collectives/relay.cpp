// Relay: see relay.h. What may be sent grows with what was received, which is all the order there
// is.
#include "collectives/relay.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace hvd {

namespace {

constexpr std::size_t kCombineBytes = std::size_t{128} << 10;  // stays in the second-level cache

}  // namespace

Relay::Relay(Channel* to_next, Channel* from_previous, const View& first,
             std::vector<Reception> receptions, std::size_t send_bytes)
    : to_next_(to_next),
      from_previous_(from_previous),
      receptions_(std::move(receptions)),
      send_bytes_(send_bytes),
      ready_(first.bytes) {
  outgoing_.push_back(first);
  bool combines = false;
  for (const Reception& reception : receptions_) {
    outgoing_.push_back(reception.to);
    combines |= reception.reduction != nullptr;
  }
  if (combines) arrived_.resize(kCombineBytes);
  skip_finished();
}

bool Relay::advance() {
  // Receiving first: it makes more ready to be sent.
  const bool received = current_ < receptions_.size() && receive();
  const bool sent = sendable() > 0 && send();
  return received || sent;
}

void Relay::watch(std::vector<Watch>& watches) const {
  const bool to_send = sendable() > 0;
  const bool to_receive = current_ < receptions_.size();
  if (to_send) watches.push_back({to_next_, true, false});
  if (to_receive) watches.push_back({from_previous_, false, true});
}

std::size_t Relay::sendable() const { return std::min(ready_, send_bytes_) - sent_; }

bool Relay::send() {
  while (sent_of_view_ == outgoing_[sending_].bytes) {
    ++sending_;
    sent_of_view_ = 0;
  }
  const std::size_t now =
      send_some(*to_next_, outgoing_[sending_].part(sent_of_view_, sendable()), Side::kOutputs);
  sent_ += now;
  sent_of_view_ += now;
  return now > 0;
}

bool Relay::receive() {
  const Reception& reception = receptions_[current_];
  std::size_t moved = 0;
  if (reception.reduction != nullptr) {
    moved = receive_to_combine(reception);
  } else {
    moved = receive_some(*from_previous_, reception.to.part(received_of_view_, reception.to.bytes));
    received_of_view_ += moved;
    ready_ += moved;
  }
  skip_finished();
  return moved > 0;
}

// An element may arrive in two parts; what is left of it waits at the start of `arrived_`.
std::size_t Relay::receive_to_combine(const Reception& reception) {
  const std::size_t expected = reception.to.bytes - received_of_view_;
  const std::size_t room = std::min(expected, arrived_.size()) - arrived_bytes_;
  const std::size_t moved = from_previous_->try_receive({arrived_.data() + arrived_bytes_, room});
  arrived_bytes_ += moved;
  const std::size_t element = size_of(reception.reduction->dtype);
  const std::size_t whole = arrived_bytes_ / element * element;
  const std::byte* from = arrived_.data();
  reception.to.part(received_of_view_, whole).for_each([&](const Segment& part) {
    const std::byte* const mine = part.out;
    const std::array sources{reception.arrived_first ? from : mine,
                             reception.arrived_first ? mine : from};
    reduce(*reception.reduction, sources, part.bytes / element, {part.out, Store::kOrdinary});
    from += part.bytes;
  });
  arrived_bytes_ -= whole;
  std::memmove(arrived_.data(), arrived_.data() + whole, arrived_bytes_);
  received_of_view_ += whole;
  ready_ += whole;
  return moved;
}

void Relay::skip_finished() {
  while (current_ < receptions_.size() && received_of_view_ == receptions_[current_].to.bytes) {
    ++current_;
    received_of_view_ = 0;
  }
}

}  // namespace hvd
