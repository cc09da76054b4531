// Doorbells: how a rank wakes the engine of another rank of its host. A bell is an event descriptor;
// it is rung only when nobody polls over there.
#pragma once

#include <map>
#include <memory>

#include "base/descriptor.h"
#include "transport/region.h"

namespace hvd {

class Doorbells {
 public:
  Doorbells(std::map<Rank, Descriptor> bells,
            const std::map<Rank, std::unique_ptr<Region>>& regions, Rank self);

  // Rings for `peer` unless one of its threads polls its rings right now.
  void ring_if_asleep(Rank peer);
  void ring_self();

  // The descriptor that peers and `ring_self` make readable.
  int own_descriptor() const { return bells_.at(self_).get(); }
  void silence();  // makes it unreadable again

  // Between these, threads of this rank poll its rings and nobody needs to ring.
  void start_polling() { own_header_->pollers.fetch_add(1, std::memory_order_seq_cst); }
  void stop_polling() { own_header_->pollers.fetch_sub(1, std::memory_order_seq_cst); }

  std::uint64_t rung() const { return rung_; }

 private:
  void ring(int descriptor);

  std::map<Rank, Descriptor> bells_;
  std::map<Rank, RegionHeader*> headers_;
  RegionHeader* own_header_;
  Rank self_;
  std::atomic<std::uint64_t> rung_{0};
};

}  // namespace hvd
