#include "transport/shm_ring.h"

#include <algorithm>
#include <cstring>

namespace hvd {

ShmRing::ShmRing(std::span<std::byte> memory)
    : header_(reinterpret_cast<ShmRingHeader*>(memory.data())),
      data_(memory.data() + sizeof(ShmRingHeader)) {}

std::size_t ShmRing::write(std::span<const iovec> pieces) {
  std::size_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  const std::size_t written = write_what_fits(pieces);
  if (written == total) return written;
  // The reader looks at this word after it has made room: either it sees the word, or we see the room.
  header_->writer_waits.store(1, std::memory_order_seq_cst);
  if (written > 0) return written;
  return write_what_fits(pieces);
}

bool ShmRing::take_writer_waits() {
  return header_->writer_waits.load(std::memory_order_seq_cst) != 0 &&
         header_->writer_waits.exchange(0, std::memory_order_seq_cst) != 0;
}

std::size_t ShmRing::write_what_fits(std::span<const iovec> pieces) {
  const std::uint64_t start = header_->written.load(std::memory_order_relaxed);
  const std::uint64_t read = header_->read.load(std::memory_order_seq_cst);
  std::size_t room = kShmRingCapacity - static_cast<std::size_t>(start - read);
  std::uint64_t position = start;
  for (const iovec& piece : pieces) {
    const auto* source = static_cast<const std::byte*>(piece.iov_base);
    std::size_t left = std::min(piece.iov_len, room);
    room -= left;
    while (left > 0) {
      const std::size_t offset = position % kShmRingCapacity;
      const std::size_t run = std::min(left, kShmRingCapacity - offset);
      std::memcpy(data_ + offset, source, run);
      source += run;
      position += run;
      left -= run;
    }
    if (room == 0) break;
  }
  header_->written.store(position, std::memory_order_seq_cst);
  return static_cast<std::size_t>(position - start);
}

std::size_t ShmRing::read(std::span<std::byte> buffer) {
  const std::uint64_t start = header_->read.load(std::memory_order_relaxed);
  const std::uint64_t written = header_->written.load(std::memory_order_acquire);
  const std::size_t count = std::min(buffer.size(), static_cast<std::size_t>(written - start));
  std::size_t done = 0;
  while (done < count) {
    const std::size_t offset = (start + done) % kShmRingCapacity;
    const std::size_t run = std::min(count - done, kShmRingCapacity - offset);
    std::memcpy(buffer.data() + done, data_ + offset, run);
    done += run;
  }
  header_->read.store(start + count, std::memory_order_seq_cst);
  return count;
}

bool ShmRing::empty() const {
  return header_->written.load(std::memory_order_seq_cst) ==
         header_->read.load(std::memory_order_relaxed);
}

}  // namespace hvd
