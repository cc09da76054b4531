#include "engine/doorbells.h"

#include <unistd.h>

namespace hvd {

Doorbells::Doorbells(std::map<Rank, Descriptor> bells,
                     const std::map<Rank, std::unique_ptr<Region>>& regions, Rank self)
    : bells_(std::move(bells)), self_(self) {
  for (const auto& [rank, region] : regions) headers_[rank] = &region->header();
  own_header_ = headers_.at(self);
}

void Doorbells::ring(int descriptor) {
  const std::uint64_t one = 1;
  rung_.fetch_add(1, std::memory_order_relaxed);
  // Fails only when the counter is full, and then the bell is ringing anyway.
  [[maybe_unused]] const ssize_t written = ::write(descriptor, &one, sizeof one);
}

void Doorbells::ring_if_asleep(Rank peer) {
  // Pairs with stop_polling; both words are used in one total order: either we see no poller, or it sees
  // what was written into the ring before.
  if (headers_.at(peer)->pollers.load(std::memory_order_seq_cst) == 0) ring(bells_.at(peer).get());
}

void Doorbells::ring_self() { ring(bells_.at(self_).get()); }

void Doorbells::silence() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(own_descriptor(), &count, sizeof count);
}

}  // namespace hvd
