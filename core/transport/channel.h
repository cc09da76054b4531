// Channel: ordered bytes between two ranks, without blocking. Kinds: tcp, shm, memory (for tests).
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string_view>

#include "base/status.h"

namespace hvd {

class Channel {
 public:
  virtual ~Channel() = default;

  // Accepts as many leading bytes of `pieces` as fit now and says how many; 0: full, try later.
  // After an error or close by the peer, `status()` is not ok and 0 is returned.
  virtual std::size_t try_send(std::span<const iovec> pieces) = 0;

  // Takes up to `buffer.size()` bytes that have arrived; 0: nothing there now.
  virtual std::size_t try_receive(std::span<std::byte> buffer) = 0;

  // Not ok once the peer has closed or the transport failed; bytes that arrived before stay readable.
  virtual Status status() const = 0;

  // Descriptor to poll for arriving bytes, or -1 for kinds that need a doorbell (shm, memory).
  virtual int descriptor() const { return -1; }

  virtual std::string_view kind() const = 0;  // "tcp", "shm", "memory"
};

}  // namespace hvd
