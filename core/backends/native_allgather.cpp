// Allgather of the native backend. First dimensions may differ, so they are exchanged first; on one
// host they travel at the head of the data.
#include <cstring>
#include <vector>

#include "backends/native_job.h"
#include "collectives/copies.h"

namespace hvd {

namespace {

constexpr std::size_t kLineBytes = 64;

class Allgather {
 public:
  explicit Allgather(const NativeJob& job)
      : job_(job), tensors_(job.work.tensors), first_dims_(job.placement.size() * tensors_.size()) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const WorkTensor& tensor = tensors_[t];
      dim(job.placement.my_set_rank, t) = tensor.shape[0];
      row_bytes_.push_back(row_bytes_of(tensor, job.work.dtype));
      inputs_.add({static_cast<const std::byte*>(tensor.input), nullptr,
                   tensor.shape[0] * row_bytes_.back()});
    }
  }

  Status run() {
    Status status;
    if (!job_.placement.spans_hosts()) {
      status = job_.turn ? gather_on_host(true) : make_outputs();
    } else {
      status = run_between_hosts();
    }
    if (status.is_ok()) copy_mine();
    return status;
  }

 private:
  std::int64_t& dim(std::size_t set_rank, std::size_t tensor) {
    return first_dims_[set_rank * tensors_.size() + tensor];
  }
  std::span<std::byte> dims_of(Rank rank) {
    const std::size_t bytes = tensors_.size() * sizeof(std::int64_t);
    std::byte* all = reinterpret_cast<std::byte*>(first_dims_.data());
    return {all + job_.placement.set_rank_of(rank) * bytes, bytes};
  }

  // With `with_data` dims and rows in one exchange, otherwise the dims of this host's members only.
  Status gather_on_host(bool with_data) {
    const auto& here = job_.placement.my_hosts_members();
    const Rank me = here[job_.placement.my_local];
    std::vector<SegmentList> places(here.size());
    return host_exchange(
        *job_.turn, dims_of(me), with_data ? View(inputs_) : View{}, job_.stream_stores,
        [&](std::span<const std::vector<std::byte>> headers, ExchangePlan& plan) {
          for (std::size_t m = 0; m < here.size(); ++m) {
            std::memcpy(dims_of(here[m]).data(), headers[m].data(), headers[m].size());
          }
          if (!with_data) {
            plan.stream_bytes.assign(here.size(), 0);
            plan.landings.assign(here.size(), {});
            return Status::ok();
          }
          Status status = make_outputs();
          if (status.is_ok()) plan_rows(places, plan);
          return status;
        });
  }

  // Where the rows of this host's members land.
  void plan_rows(std::vector<SegmentList>& places, ExchangePlan& plan) {
    const auto& here = job_.placement.my_hosts_members();
    for (std::size_t m = 0; m < here.size(); ++m) {
      places[m] = place_of(here[m]);
      plan.stream_bytes.push_back(places[m].bytes());
      plan.landings.push_back({0, places[m]});
    }
  }

  Status make_outputs() {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      Shape shape = tensors_[t].shape;
      shape[0] = 0;
      for (std::size_t r = 0; r < job_.placement.size(); ++r) shape[0] += dim(r, t);
      Status status = allocate_output(tensors_[t], std::move(shape), job_.work.dtype);
      if (!status.is_ok()) return status;
    }
    return Status::ok();
  }

  // The rows of `rank` in the outputs of all tensors, in the order in which it sends them.
  SegmentList place_of(Rank rank) {
    SegmentList list;
    const std::size_t set_rank = job_.placement.set_rank_of(rank);
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      std::size_t before = 0;
      for (std::size_t r = 0; r < set_rank; ++r) before += dim(r, t);
      const std::size_t bytes = dim(set_rank, t) * row_bytes_[t];
      std::byte* const out = static_cast<std::byte*>(tensors_[t].output);
      list.add({nullptr, bytes == 0 ? nullptr : out + before * row_bytes_[t], bytes});
    }
    return list;
  }

  void copy_mine() {
    const Rank me = job_.placement.members[job_.placement.my_set_rank];
    const SegmentList place = place_of(me);
    std::size_t offset = 0;
    View(inputs_).for_each([&](const Segment& part) {
      scatter(View(place, offset, part.bytes), part.in, output_store_for(place.bytes()));
      offset += part.bytes;
    });
  }

  Status run_between_hosts() {
    Status status = gather_dims_between_hosts();
    if (status.is_ok()) status = make_outputs();
    if (!status.is_ok()) return status;
    copy_mine();  // the ring sends from the outputs
    if (job_.turn) {
      std::vector<SegmentList> places(job_.placement.local_size());
      status = host_exchange(*job_.turn, {}, inputs_, job_.stream_stores,
                             [&](std::span<const std::vector<std::byte>>, ExchangePlan& plan) {
                               plan_rows(places, plan);
                               return Status::ok();
                             });
      if (!status.is_ok()) return status;
    }
    std::vector<SegmentList> blocks;
    for (const auto& host : job_.placement.hosts) {
      SegmentList block;
      for (const Rank rank : host) {
        View(place_of(rank)).for_each([&](const Segment& part) { block.add(part); });
      }
      blocks.push_back(std::move(block));
    }
    return exchange_blocks(blocks, job_.placement.shares);
  }

  // Dims of all ranks: known to a host's members, then to leaders, then to everybody.
  Status gather_dims_between_hosts() {
    if (job_.turn) {
      if (Status status = gather_on_host(false); !status.is_ok()) return status;
    }
    std::vector<SegmentList> blocks;
    for (const auto& host : job_.placement.hosts) {
      SegmentList block;
      for (const Rank rank : host) {
        const std::span<std::byte> dims = dims_of(rank);
        block.add({dims.data(), dims.data(), dims.size()});
      }
      blocks.push_back(std::move(block));
    }
    return exchange_blocks(blocks, 1);
  }

  // blocks[h] is complete on all members of host h and comes to everybody.
  Status exchange_blocks(const std::vector<SegmentList>& blocks, std::size_t parts) {
    const std::size_t mine = job_.placement.my_local;
    Status status = among_hosts(job_, parts, [&](const Ring& ring) {
      std::vector<View> my_share;
      for (const SegmentList& block : blocks) {
        my_share.push_back(split_evenly(block, parts, kLineBytes)[mine]);
      }
      return ring_allgather(ring, my_share);
    });
    if (!status.is_ok() || !job_.turn) return status;
    // What member i got from other hosts.
    std::vector<SegmentList> got(job_.placement.local_size());
    std::vector<View> views(got.size());
    for (std::size_t member = 0; member < got.size(); ++member) {
      for (std::size_t host = 0; host < blocks.size() && member < parts; ++host) {
        if (host == job_.placement.my_host) continue;
        split_evenly(blocks[host], parts, kLineBytes)[member].for_each(
            [&](const Segment& part) { got[member].add(part); });
      }
      views[member] = got[member];
    }
    return share_on_host(job_, views);
  }

  const NativeJob& job_;
  std::vector<WorkTensor>& tensors_;
  std::vector<std::int64_t> first_dims_;  // by set rank, then tensor
  std::vector<std::size_t> row_bytes_;
  SegmentList inputs_;
};

}  // namespace

Status native_allgather(const NativeJob& job) { return Allgather(job).run(); }

}  // namespace hvd
