// Broadcast of the native backend: through the arena of the root's host, along a chain of hosts,
// and through the arenas of the others.
#include <vector>

#include "backends/native_job.h"
#include "collectives/copies.h"

namespace hvd {

namespace {

constexpr std::size_t kLineBytes = 64;

// The root's inputs come to the outputs of all members on its host.
Status broadcast_on_host(const NativeJob& job, const View& whole, std::size_t root) {
  if (!job.turn) return Status::ok();
  const bool i_am_root = job.placement.my_local == root;
  return host_exchange(*job.turn, {}, i_am_root ? whole : View{}, job.stream_stores,
                       [&](std::span<const std::vector<std::byte>>, ExchangePlan& plan) {
                         const std::size_t members = job.placement.local_size();
                         plan.stream_bytes.assign(members, 0);
                         plan.landings.assign(members, {});
                         plan.stream_bytes[root] = whole.bytes;
                         plan.landings[root] = {0, whole};
                         return Status::ok();
                       });
}

}  // namespace

Status native_broadcast(const NativeJob& job) {
  const SegmentList list = segments_of(job.work);
  const View whole = list;
  const Placement& placement = job.placement;
  if (whole.bytes == 0) return Status::ok();
  const std::size_t root_host = placement.host_of(job.work.root);
  if (job.work.root == placement.members[placement.my_set_rank]) {
    copy_through(whole, output_store_for(whole.bytes));
  }
  const Algorithm algorithm = job.algorithm(whole.bytes);
  if (algorithm == Algorithm::kLocalCopy) return Status::ok();
  if (placement.my_host == root_host) {
    const auto& here = placement.my_hosts_members();
    std::size_t root = 0;
    while (here[root] != job.work.root) ++root;
    Status status = broadcast_on_host(job, whole, root);
    if (!status.is_ok() || !placement.spans_hosts()) return status;
  }
  const std::size_t parts = algorithm == Algorithm::kLeaders ? 1 : placement.shares;
  std::vector<View> shares = split_evenly(whole, parts, kLineBytes);
  shares.resize(placement.local_size());
  const View mine = shares[placement.my_local];
  if (mine.bytes > 0) {
    Status status = among_hosts(
        job, parts, [&](const Ring& ring) { return chain_broadcast(ring, root_host, mine); });
    if (!status.is_ok()) return status;
  }
  return placement.my_host == root_host ? Status::ok() : share_on_host(job, shares);
}

}  // namespace hvd
