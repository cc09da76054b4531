// Reducescatter of the native backend: rows are divided among the members, the first `rows % size`
// of them get one more.
#include <algorithm>
#include <vector>

#include "backends/native_job.h"
#include "collectives/copies.h"
#include "collectives/host_reduce.h"

namespace hvd {

namespace {

constexpr std::size_t kBlockBytes = std::size_t{8}
                                    << 20;  // scratch memory when several hosts take part

struct Rows {
  std::int64_t begin;
  std::int64_t count;
};

Rows rows_of(std::int64_t all, std::size_t set_rank, std::size_t size) {
  const auto rank = static_cast<std::int64_t>(set_rank), ranks = static_cast<std::int64_t>(size);
  const std::int64_t base = all / ranks, more = all % ranks;
  return {rank * base + std::min(rank, more), base + (rank < more ? 1 : 0)};
}

// The rows of all tensors that belong to `set_rank`; outputs only if they are mine.
SegmentList share_of(const NativeJob& job, std::size_t set_rank) {
  SegmentList list;
  for (const WorkTensor& tensor : job.work.tensors) {
    const std::size_t row = row_bytes_of(tensor, job.work.dtype);
    const Rows rows = rows_of(tensor.shape[0], set_rank, job.placement.size());
    const bool mine = set_rank == job.placement.my_set_rank;
    list.add({static_cast<const std::byte*>(tensor.input) + rows.begin * row,
              mine ? static_cast<std::byte*>(tensor.output) : nullptr, rows.count * row});
  }
  return list;
}

// Blocks of the members' shares, one after the other, are reduced into scratch memory; what is mine
// of a block goes to the outputs.
Status reduce_in_blocks(const NativeJob& job, const std::vector<SegmentList>& shares) {
  SegmentList all;
  std::size_t my_begin = 0;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    if (r == job.placement.my_set_rank) my_begin = all.bytes();
    View(shares[r]).for_each([&](const Segment& part) { all.add(part); });
  }
  const SegmentList& mine = shares[job.placement.my_set_rank];
  std::vector<std::byte> scratch(std::min(all.bytes(), kBlockBytes));
  for (std::size_t begin = 0; begin < all.bytes(); begin += kBlockBytes) {
    SegmentList block;
    const View here = View(all).part(begin, kBlockBytes);
    here.for_each([&](const Segment& part) {
      block.add({part.in, scratch.data() + block.bytes(), part.bytes});
    });
    Status status = hierarchical_allreduce(job, block, job.reduction(), job.placement.shares);
    if (!status.is_ok()) return status;
    const std::size_t from = std::clamp(my_begin, begin, begin + here.bytes);
    const std::size_t to = std::clamp(my_begin + mine.bytes(), begin, begin + here.bytes);
    scatter(View(mine).part(from - my_begin, to - from), scratch.data() + (from - begin),
            Store::kOrdinary);
  }
  return Status::ok();
}

}  // namespace

Status native_reducescatter(const NativeJob& job) {
  for (WorkTensor& tensor : job.work.tensors) {
    Shape shape = tensor.shape;
    shape[0] = rows_of(shape[0], job.placement.my_set_rank, job.placement.size()).count;
    Status status = allocate_output(tensor, std::move(shape), job.work.dtype);
    if (!status.is_ok()) return status;
  }
  std::vector<SegmentList> shares;
  std::size_t bytes = 0;
  for (std::size_t r = 0; r < job.placement.size(); ++r) {
    shares.push_back(share_of(job, r));
    bytes += shares.back().bytes();
  }
  switch (job.algorithm(bytes)) {
    case Algorithm::kLocalCopy:
      reduce_alone(shares[0], job.reduction());
      return Status::ok();
    case Algorithm::kHostShares: {
      const std::vector<View> views(shares.begin(), shares.end());
      const std::size_t piece = choose_piece_bytes(views.size(), job.turn->slot_bytes());
      return host_reduce_shares(*job.turn, views, job.reduction(), false, {piece, &job.stores});
    }
    default:
      return reduce_in_blocks(job, shares);
  }
}

}  // namespace hvd
