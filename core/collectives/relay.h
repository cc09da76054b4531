// Relay: one rank's part in a ring or chain. It sends what it has, then passes on what it receives,
// byte by byte as it becomes ready; a received view may be combined with what this rank holds
// before it goes on.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/flow.h"
#include "collectives/kernels.h"

namespace hvd {

struct Reception {
  View to;  // outputs
  // Not null: what arrives is combined with the outputs.
  const Reduction* reduction = nullptr;
  bool arrived_first = true;  // order of the operands
};

class Relay : public Flow {
 public:
  // Sends the outputs of `first`, then those of the receptions in their order, `send_bytes` in all.
  // Either channel may be null when nothing goes that way.
  Relay(Channel* to_next, Channel* from_previous, const View& first,
        std::vector<Reception> receptions, std::size_t send_bytes);

  bool advance() override;
  bool done() const override { return sent_ == send_bytes_ && current_ == receptions_.size(); }
  void watch(std::vector<Watch>& watches) const override;

 private:
  bool send();
  bool receive();
  std::size_t receive_to_combine(const Reception& reception);
  std::size_t sendable() const;
  void skip_finished();

  Channel* to_next_;
  Channel* from_previous_;
  std::vector<View> outgoing_;  // `first` and the receptions
  std::vector<Reception> receptions_;
  std::size_t send_bytes_;
  std::size_t sent_ = 0;
  std::size_t sending_ = 0;  // index into outgoing_
  std::size_t sent_of_view_ = 0;
  std::size_t ready_ = 0;             // bytes of the outgoing sequence that may be sent
  std::size_t current_ = 0;           // index into receptions_
  std::size_t received_of_view_ = 0;  // finished: in place, combined
  std::vector<std::byte> arrived_;    // bytes that wait to be combined
  std::size_t arrived_bytes_ = 0;
};

}  // namespace hvd
