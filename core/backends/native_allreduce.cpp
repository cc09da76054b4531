// Allreduce of the native backend: within a host, and between hosts in three phases (arena, rings,
// arena).
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

Status hierarchical_allreduce(const NativeJob& job, const View& whole, const Reduction& reduction,
                              std::size_t parts) {
  std::vector<View> shares = split_evenly(whole, parts, kLineBytes);
  shares.resize(job.placement.local_size());
  if (job.turn) {
    Status status = host_reduce_shares(*job.turn, shares, reduction.without_postscale(), false,
                                       tuning_of(job, parts));
    if (!status.is_ok()) return status;
  } else {
    reduce_alone(whole, reduction.without_postscale());
  }
  const View mine = shares[job.placement.my_local];
  if (mine.bytes > 0) {
    Status status = among_hosts(job, parts, [&](const Ring& ring) {
      const Reduction rest = reduction.without_prescale();
      const bool few = job.algorithm(whole.bytes) == Algorithm::kLeaders;
      return few ? recursive_doubling(ring, mine, rest) : ring_allreduce(ring, mine, rest);
    });
    if (!status.is_ok()) return status;
  }
  return share_on_host(job, shares);
}

}  // namespace hvd
