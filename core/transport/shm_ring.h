// ShmRing: a byte queue in shared memory with one writer and one reader, in different processes.
// ShmChannel: the Channel made of two of them. Neither sleeps; the sender rings a doorbell itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "transport/channel.h"

namespace hvd {

// Lies in shared memory, zero at start. `written` and `read` only grow.
struct ShmRingHeader {
  alignas(128) std::atomic<std::uint64_t> written;
  alignas(128) std::atomic<std::uint64_t> read;
  std::atomic<std::uint32_t> writer_waits;  // the writer found the ring full and wants to be woken
};

inline constexpr std::size_t kShmRingCapacity = 64 << 10;
inline constexpr std::size_t kShmRingBytes = sizeof(ShmRingHeader) + kShmRingCapacity;

class ShmRing {
 public:
  ShmRing() = default;
  explicit ShmRing(std::span<std::byte> memory);  // kShmRingBytes, 128-byte aligned

  std::size_t write(std::span<const iovec> pieces);
  std::size_t read(std::span<std::byte> buffer);
  bool empty() const;
  // Reader: true once after the writer had to leave bytes behind; wake it then.
  bool take_writer_waits();
  std::uint64_t written() const { return header_->written.load(std::memory_order_relaxed); }
  bool has_read(std::uint64_t position) const {
    return header_->read.load(std::memory_order_relaxed) >= position;
  }

 private:
  std::size_t write_what_fits(std::span<const iovec> pieces);

  ShmRingHeader* header_ = nullptr;
  std::byte* data_ = nullptr;
};

class ShmChannel final : public Channel {
 public:
  ShmChannel(ShmRing outgoing, ShmRing incoming) : outgoing_(outgoing), incoming_(incoming) {}

  std::size_t try_send(std::span<const iovec> pieces) override { return outgoing_.write(pieces); }
  std::size_t try_receive(std::span<std::byte> buffer) override { return incoming_.read(buffer); }
  Status status() const override { return status_; }
  std::string_view kind() const override { return "shm"; }

  bool readable() const { return !incoming_.empty(); }
  bool take_writer_waits() { return incoming_.take_writer_waits(); }
  const ShmRing& outgoing() const { return outgoing_; }
  // Shared memory cannot tell that the peer has gone; whoever learns it says so here.
  void mark_closed(Status why) { status_ = std::move(why); }

 private:
  ShmRing outgoing_;
  ShmRing incoming_;
  Status status_;
};

}  // namespace hvd
