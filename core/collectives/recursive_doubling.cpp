// Recursive doubling with a fold for numbers of hosts that are no powers of two.
#include "collectives/recursive_doubling.h"

#include <array>
#include <bit>
#include <vector>

#include "collectives/copies.h"
#include "collectives/flow.h"
#include "collectives/peers.h"

namespace hvd {

namespace {

class Doubling {
 public:
  Doubling(const Ring& ring, const View& view, const Reduction& reduction)
      : ring_(ring),
        reduction_(reduction),
        view_(view),
        half_(std::bit_floor(ring.size())),
        mine_(view.bytes),
        theirs_(view.bytes) {
    SegmentList current = outputs_of(view);
    gather(mine_.data(), current, Store::kOrdinary);
  }

  Status run() {
    if (Status status = connect(); !status.is_ok()) return status;
    std::size_t next = 0;  // index into channels_
    const bool folded = ring_.me >= half_;
    if (has_fold_partner()) {
      if (Status status = fold(*channels_[next++], folded); !status.is_ok()) return status;
    }
    if (!folded) {
      for (std::size_t distance = 1; distance < half_; distance *= 2) {
        Status status = exchange(*channels_[next++], distance);
        if (!status.is_ok()) return status;
      }
    }
    if (has_fold_partner()) {
      if (Status status = unfold(*channels_[0], folded); !status.is_ok()) return status;
    }
    scatter(view_, mine_.data(), Store::kOrdinary);
    return Status::ok();
  }

 private:
  bool has_fold_partner() const { return ring_.me >= half_ || ring_.me + half_ < ring_.size(); }

  Status connect() {
    std::vector<Rank> peers;
    if (has_fold_partner()) {
      peers.push_back(ring_.ranks[ring_.me >= half_ ? ring_.me - half_ : ring_.me + half_]);
    }
    for (std::size_t distance = 1; distance < half_ && ring_.me < half_; distance *= 2) {
      peers.push_back(ring_.ranks[ring_.me ^ distance]);
    }
    return connect_peers(ring_.links, ring_.ranks[ring_.me], peers, channels_);
  }

  Status fold(Channel& channel, bool folded) {
    if (folded) return transfer(&channel, nullptr);
    Status status = transfer(nullptr, &channel);
    if (status.is_ok()) combine(true, reduction_.unscaled());
    return status;
  }

  Status unfold(Channel& channel, bool folded) {
    if (!folded) return transfer(&channel, nullptr);
    Status status = transfer(nullptr, &channel);
    mine_.swap(theirs_);
    return status;
  }

  Status exchange(Channel& channel, std::size_t distance) {
    Status status = transfer(&channel, &channel);
    const bool last = distance * 2 == half_;
    if (status.is_ok()) {
      combine((ring_.me & distance) == 0, last ? scaled_at_end() : reduction_.unscaled());
    }
    return status;
  }

  Reduction scaled_at_end() const {
    return {reduction_.dtype, reduction_.op, 1.0, reduction_.postscale};
  }

  void combine(bool mine_first, const Reduction& reduction) {
    const std::byte* const mine = mine_.data();
    const std::byte* const theirs = theirs_.data();
    const std::array sources{mine_first ? mine : theirs, mine_first ? theirs : mine};
    reduce(reduction, sources, mine_.size() / size_of(reduction.dtype),
           {mine_.data(), Store::kOrdinary});
  }

  // Sends mine_ and receives theirs_ at once.
  Status transfer(Channel* to, Channel* from) {
    SegmentList outgoing, incoming;
    outgoing.add({mine_.data(), nullptr, to == nullptr ? 0 : mine_.size()});
    incoming.add({nullptr, theirs_.data(), from == nullptr ? 0 : theirs_.size()});
    SendFlow send(to == nullptr ? *from : *to, outgoing);
    ReceiveFlow receive(from == nullptr ? *to : *from, incoming);
    const std::array<Flow*, 2> both{&send, &receive};
    return drive(both, ring_.wait);
  }

  const Ring& ring_;
  Reduction reduction_;
  View view_;
  std::size_t half_;  // the greatest power of two that is not above N
  std::vector<std::byte> mine_;
  std::vector<std::byte> theirs_;
  std::vector<Channel*> channels_;
};

}  // namespace

Status recursive_doubling(const Ring& ring, const View& view, const Reduction& reduction) {
  return Doubling(ring, view, reduction).run();
}

}  // namespace hvd
