// Alltoall of the native backend: the splits of all ranks are exchanged, then rows go through the
// arena to ranks of this host and directly to ranks of others.
#include <cstring>
#include <vector>

#include "backends/native_job.h"
#include "collectives/copies.h"
#include "collectives/pairwise.h"
#include "collectives/peers.h"

namespace hvd {

namespace {

class Alltoall {
 public:
  Alltoall(const NativeJob& job, WorkTensor& tensor)
      : job_(job),
        placement_(job.placement),
        tensor_(tensor),
        row_bytes_(row_bytes_of(tensor, job.work.dtype)) {
    tensor_.received_splits.assign(placement_.size(), 0);
    tensor_.received_splits[me()] = tensor_.splits[me()];
    for (const Rank rank : placement_.members) {
      if (placement_.host_of(rank) != placement_.my_host) remote_.push_back(rank);
    }
  }

  Status run() {
    if (!remote_.empty()) {
      const Rank my_rank = placement_.members[me()];
      Status status = connect_peers(job_.links, my_rank, remote_, channels_);
      if (status.is_ok()) status = exchange_remote_counts();
      if (!status.is_ok()) return status;
    }
    Status status = job_.turn ? exchange_on_host() : make_output();
    if (!status.is_ok()) return status;
    scatter(incoming(me()), rows_of(outgoing(me())), Store::kOrdinary);
    return remote_.empty() ? status : exchange_remote_rows();
  }

 private:
  std::size_t me() const { return placement_.my_set_rank; }

  static std::size_t sum_before(const std::vector<std::int64_t>& rows, std::size_t end) {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < end; ++i) sum += rows[i];
    return sum;
  }
  static const std::byte* rows_of(const SegmentList& list) {
    const std::byte* rows = nullptr;
    View(list).for_each([&](const Segment& part) { rows = part.in; });
    return rows;
  }

  // My rows for a set rank, and the place of its rows in my output.
  SegmentList outgoing(std::size_t set_rank) const {
    SegmentList list;
    const std::size_t bytes = tensor_.splits[set_rank] * row_bytes_;
    if (bytes > 0) {
      const std::byte* input = static_cast<const std::byte*>(tensor_.input);
      list.add({input + sum_before(tensor_.splits, set_rank) * row_bytes_, nullptr, bytes});
    }
    return list;
  }
  SegmentList incoming(std::size_t set_rank) const {
    SegmentList list;
    const std::size_t bytes = tensor_.received_splits[set_rank] * row_bytes_;
    if (bytes > 0 && tensor_.output != nullptr) {
      std::byte* output = static_cast<std::byte*>(tensor_.output);
      list.add(
          {nullptr, output + sum_before(tensor_.received_splits, set_rank) * row_bytes_, bytes});
    }
    return list;
  }

  Status make_output() {
    Shape shape = tensor_.shape;
    shape[0] = static_cast<std::int64_t>(sum_before(tensor_.received_splits, placement_.size()));
    return allocate_output(tensor_, std::move(shape), job_.work.dtype);
  }

  // Header: my row counts for this host's members; stream: the rows for all of them but me.
  Status exchange_on_host() {
    const auto& here = placement_.my_hosts_members();
    std::vector<std::int64_t> counts;
    SegmentList stream;
    for (const Rank rank : here) {
      const std::size_t set_rank = placement_.set_rank_of(rank);
      counts.push_back(tensor_.splits[set_rank]);
      if (set_rank == me()) continue;
      View(outgoing(set_rank)).for_each([&](const Segment& part) { stream.add(part); });
    }
    std::vector<SegmentList> places(here.size());
    return host_exchange(*job_.turn, std::as_bytes(std::span(counts)), stream, job_.stream_stores,
                         [&](std::span<const std::vector<std::byte>> headers, ExchangePlan& plan) {
                           return plan_rows(headers, places, plan);
                         });
  }

  Status plan_rows(std::span<const std::vector<std::byte>> headers,
                   std::vector<SegmentList>& places, ExchangePlan& plan) {
    const auto& here = placement_.my_hosts_members();
    std::vector<std::int64_t> rows(here.size());  // of one sender, by local receiver
    for (std::size_t sender = 0; sender < here.size(); ++sender) {
      std::memcpy(rows.data(), headers[sender].data(), headers[sender].size());
      tensor_.received_splits[placement_.set_rank_of(here[sender])] = rows[placement_.my_local];
      rows[sender] = 0;  // what it keeps is not in its stream
      plan.stream_bytes.push_back(sum_before(rows, rows.size()) * row_bytes_);
      plan.landings.push_back({sum_before(rows, placement_.my_local) * row_bytes_, {}});
    }
    Status status = make_output();
    for (std::size_t sender = 0; sender < here.size(); ++sender) {
      places[sender] = incoming(placement_.set_rank_of(here[sender]));
      plan.landings[sender].to = places[sender];
    }
    return status;
  }

  Status exchange_remote_counts() {
    std::vector<SegmentList> outgoing_counts(remote_.size()), incoming_counts(remote_.size());
    for (std::size_t i = 0; i < remote_.size(); ++i) {
      const std::size_t set_rank = placement_.set_rank_of(remote_[i]);
      const auto out = std::as_bytes(std::span(&tensor_.splits[set_rank], 1));
      const auto in = std::as_writable_bytes(std::span(&tensor_.received_splits[set_rank], 1));
      outgoing_counts[i].add({out.data(), nullptr, out.size()});
      incoming_counts[i].add({nullptr, in.data(), in.size()});
    }
    return exchange_remote(outgoing_counts, incoming_counts);
  }

  Status exchange_remote_rows() {
    std::vector<SegmentList> outgoing_rows, incoming_rows;
    for (const Rank rank : remote_) {
      outgoing_rows.push_back(outgoing(placement_.set_rank_of(rank)));
      incoming_rows.push_back(incoming(placement_.set_rank_of(rank)));
    }
    return exchange_remote(outgoing_rows, incoming_rows);
  }

  Status exchange_remote(const std::vector<SegmentList>& out, const std::vector<SegmentList>& in) {
    const std::vector<View> outgoing_views(out.begin(), out.end());
    const std::vector<View> incoming_views(in.begin(), in.end());
    return pairwise_exchange(channels_, outgoing_views, incoming_views, job_.wait);
  }

  const NativeJob& job_;
  const Placement& placement_;
  WorkTensor& tensor_;
  std::size_t row_bytes_;
  std::vector<Rank> remote_;
  std::vector<Channel*> channels_;  // parallel to remote_
};

}  // namespace

Status native_alltoall(const NativeJob& job) {
  for (WorkTensor& tensor : job.work.tensors) {
    if (Status status = Alltoall(job, tensor).run(); !status.is_ok()) return status;
  }
  return Status::ok();
}

}  // namespace hvd
