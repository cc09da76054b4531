// MemoryChannel: two connected in-process ends, for tests. Safe to use from one thread per end.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "transport/channel.h"

namespace hvd {

class MemoryChannel final : public Channel {
 public:
  // Two ends; each direction holds up to `capacity` bytes that were sent and not yet received.
  static std::pair<std::unique_ptr<MemoryChannel>, std::unique_ptr<MemoryChannel>> make_pair(
      std::size_t capacity);

  ~MemoryChannel() override;  // closes

  std::size_t try_send(std::span<const iovec> pieces) override;
  std::size_t try_receive(std::span<std::byte> buffer) override;
  Status status() const override;
  std::string_view kind() const override { return "memory"; }

  // What the other end sees as the peer's close; bytes sent before stay readable there.
  void close();
  // Of the direction from this end to the other; less than what is in it now: full until drained.
  void set_capacity(std::size_t capacity);

 private:
  struct Direction {
    std::deque<std::byte> bytes;
    std::size_t capacity = 0;
    bool closed = false;  // by the sender
  };
  struct Shared {
    std::mutex mutex;
    std::array<Direction, 2> directions;
  };

  MemoryChannel(std::shared_ptr<Shared> shared, int side)
      : shared_(std::move(shared)), side_(static_cast<std::size_t>(side)) {}
  Direction& outgoing() const { return shared_->directions[side_]; }
  Direction& incoming() const { return shared_->directions[1 - side_]; }

  std::shared_ptr<Shared> shared_;
  std::size_t side_;
};

}  // namespace hvd
