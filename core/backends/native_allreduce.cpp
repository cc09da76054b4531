// Allreduce of the native backend: within a host, and between hosts in three phases (arena, rings,
// arena).
#include <algorithm>
#include <memory>
#include <vector>

#include "backends/native_job.h"
#include "collectives/copies.h"
#include "collectives/host_reduce.h"
#include "collectives/recursive_doubling.h"

namespace hvd {

namespace {

constexpr std::size_t kLineBytes = 64;

HostTuning tuning_of(const NativeJob& job, std::size_t shares) {
  return {choose_piece_bytes(shares, job.turn->slot_bytes()), &job.stores};
}

bool lacks_outputs(const View& view) {
  bool lacks = false;
  view.for_each([&](const Segment& part) { lacks |= part.out == nullptr; });
  return lacks;
}

// A joined rank of several hosts works for the others too, and needs room for that.
Status allreduce_with_room(const NativeJob& job, const View& whole, std::size_t parts) {
  if (!lacks_outputs(whole)) return hierarchical_allreduce(job, whole, job.reduction(), parts);
  std::vector<std::byte> room(whole.bytes);
  SegmentList with_outputs;
  std::size_t offset = 0;
  whole.for_each([&](const Segment& part) {
    with_outputs.add({part.in, room.data() + offset, part.bytes});
    offset += part.bytes;
  });
  return hierarchical_allreduce(job, with_outputs, job.reduction(), parts);
}

}  // namespace

Status native_allreduce(const NativeJob& job) {
  const SegmentList list = segments_of(job.work);
  if (list.bytes() == 0) return Status::ok();
  const View whole = list;
  switch (job.algorithm(whole.bytes)) {
    case Algorithm::kLocalCopy:
      reduce_alone(whole, job.reduction());
      return Status::ok();
    case Algorithm::kHostEveryone:
      if (whole.bytes <= job.turn->slot_bytes()) {
        return host_allreduce_small(*job.turn, whole, job.reduction());
      }
      [[fallthrough]];
    case Algorithm::kHostShares: {
      const std::vector<View> shares = split_evenly(whole, job.placement.local_size(), kLineBytes);
      return host_reduce_shares(*job.turn, shares, job.reduction(), true,
                                tuning_of(job, shares.size()));
    }
    case Algorithm::kLeaders:
      return allreduce_with_room(job, whole, 1);
    default:
      return allreduce_with_room(job, whole, job.placement.shares);
  }
}

namespace {

// A share's part of a block: large beside what it costs to begin a ring, small beside the whole.
constexpr std::size_t kBlockShareBytes = std::size_t{4} << 20;

Status reduce_on_host(const NativeJob& job, const View& block, const std::vector<View>& shares,
                      const Reduction& reduction, std::size_t parts) {
  if (job.turn) {
    return host_reduce_shares(*job.turn, shares, reduction.without_postscale(), false,
                              tuning_of(job, parts));
  }
  reduce_alone(block, reduction.without_postscale());
  return Status::ok();
}

std::vector<View> shares_of(const NativeJob& job, const View& block, std::size_t parts) {
  std::vector<View> shares = split_evenly(block, parts, kLineBytes);
  shares.resize(job.placement.local_size());
  return shares;
}

// While it lives, this rank's ring goes on between the pieces in the arena.
class Beside {
 public:
  Beside(std::optional<ArenaTurn>& turn, Flow* flow) : turn_(turn) {
    if (!turn_ || flow == nullptr) return;
    turn_->set_beside([flow] { return !flow->done() && flow->advance(); });
  }
  ~Beside() {
    if (turn_) turn_->set_beside({});
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

 private:
  std::optional<ArenaTurn>& turn_;
};

// The three phases block by block: while the ring of one is under way, the next is reduced on the host
// and the one before comes to all. All ranks of a host go through the arena in the same order.
class BlockPipeline {
 public:
  BlockPipeline(const NativeJob& job, const View& whole, const Reduction& reduction,
                std::size_t parts)
      : job_(job), whole_(whole), reduction_(reduction), parts_(parts) {}

  Status run() {
    const std::size_t block_bytes = parts_ * kBlockShareBytes;
    const std::size_t blocks = (whole_.bytes + block_bytes - 1) / block_bytes;
    std::vector<View> before;  // shares of the block whose ring is under way
    for (std::size_t block = 0; block <= blocks; ++block) {
      std::vector<View> shares;
      if (block < blocks) {
        const View view = whole_.part(block * block_bytes, block_bytes);
        shares = shares_of(job_, view, parts_);
        const Beside going_on(job_.turn, ring_.get());
        Status status = reduce_on_host(job_, view, shares, reduction_, parts_);
        if (!status.is_ok()) return status;
      }
      if (Status status = finish_ring(); !status.is_ok()) return status;
      if (block < blocks) {
        if (Status status = start_ring(shares); !status.is_ok()) return status;
      }
      if (block > 0) {
        const Beside going_on(job_.turn, ring_.get());
        if (Status status = share_on_host(job_, before); !status.is_ok()) return status;
      }
      before = std::move(shares);
    }
    return Status::ok();
  }

 private:
  Status start_ring(const std::vector<View>& shares) {
    const View mine = shares[job_.placement.my_local];
    if (mine.bytes == 0) return Status::ok();
    return among_hosts(job_, parts_, [&](const Ring& ring) {
      return start_ring_allreduce(ring, mine, reduction_.without_prescale(), ring_);
    });
  }

  Status finish_ring() {
    if (ring_ == nullptr) return Status::ok();
    Flow* const flow = ring_.get();
    Status status = drive({&flow, 1}, job_.wait);
    ring_.reset();
    return status;
  }

  const NativeJob& job_;
  View whole_;
  Reduction reduction_;
  std::size_t parts_;
  std::unique_ptr<Flow> ring_;
};

}  // namespace

Status hierarchical_allreduce(const NativeJob& job, const View& whole, const Reduction& reduction,
                              std::size_t parts) {
  const bool few = job.algorithm(whole.bytes) == Algorithm::kLeaders;
  // All hosts must cut alike, also one with a single rank.
  const bool uses_arenas = std::ranges::any_of(
      job.placement.hosts, [](const auto& members) { return members.size() > 1; });
  if (uses_arenas && !few && whole.bytes > parts * kBlockShareBytes) {
    return BlockPipeline(job, whole, reduction, parts).run();
  }
  const std::vector<View> shares = shares_of(job, whole, parts);
  if (Status status = reduce_on_host(job, whole, shares, reduction, parts); !status.is_ok()) {
    return status;
  }
  const View mine = shares[job.placement.my_local];
  if (mine.bytes > 0) {
    Status status = among_hosts(job, parts, [&](const Ring& ring) {
      const Reduction rest = reduction.without_prescale();
      return few ? recursive_doubling(ring, mine, rest) : ring_allreduce(ring, mine, rest);
    });
    if (!status.is_ok()) return status;
  }
  return share_on_host(job, shares);
}

}  // namespace hvd
