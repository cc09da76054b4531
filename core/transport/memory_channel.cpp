// MemoryChannel: a byte queue per direction behind one mutex.
#include "transport/memory_channel.h"

#include <algorithm>

namespace hvd {

std::pair<std::unique_ptr<MemoryChannel>, std::unique_ptr<MemoryChannel>> MemoryChannel::make_pair(
    std::size_t capacity) {
  auto shared = std::make_shared<Shared>();
  for (Direction& direction : shared->directions) direction.capacity = capacity;
  return {std::unique_ptr<MemoryChannel>(new MemoryChannel(shared, 0)),
          std::unique_ptr<MemoryChannel>(new MemoryChannel(shared, 1))};
}

MemoryChannel::~MemoryChannel() { close(); }

std::size_t MemoryChannel::try_send(std::span<const iovec> pieces) {
  const std::lock_guard lock(shared_->mutex);
  Direction& direction = outgoing();
  if (direction.closed || incoming().closed) return 0;
  std::size_t taken = 0;
  for (const iovec& piece : pieces) {
    const std::size_t used = direction.bytes.size();
    const std::size_t room = direction.capacity > used ? direction.capacity - used : 0;
    const std::size_t count = std::min(room, piece.iov_len);
    const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
    direction.bytes.insert(direction.bytes.end(), bytes, bytes + count);
    taken += count;
    if (count < piece.iov_len) break;
  }
  return taken;
}

std::size_t MemoryChannel::try_receive(std::span<std::byte> buffer) {
  const std::lock_guard lock(shared_->mutex);
  auto& bytes = incoming().bytes;
  const std::size_t count = std::min(buffer.size(), bytes.size());
  const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(count);
  std::copy(bytes.begin(), end, buffer.begin());
  bytes.erase(bytes.begin(), end);
  return count;
}

Status MemoryChannel::status() const {
  const std::lock_guard lock(shared_->mutex);
  if (outgoing().closed) return Status::aborted("this end of the memory channel is closed");
  if (incoming().closed) return Status::aborted("the peer closed the memory channel");
  return Status::ok();
}

void MemoryChannel::close() {
  const std::lock_guard lock(shared_->mutex);
  outgoing().closed = true;
}

void MemoryChannel::set_capacity(std::size_t capacity) {
  const std::lock_guard lock(shared_->mutex);
  outgoing().capacity = capacity;
}

}  // namespace hvd
