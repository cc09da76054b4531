// NativeBackend: what it can execute, and the dispatch to the file of each collective.
#include "backends/native.h"

#include <algorithm>

#include "backends/native_job.h"
#include "collectives/copies.h"

namespace hvd {

namespace {

bool reduces(Collective kind) {
  return kind == Collective::kAllreduce || kind == Collective::kReducescatter;
}

bool moves_data(Collective kind) {
  return reduces(kind) || kind == Collective::kAllgather || kind == Collective::kBroadcast ||
         kind == Collective::kAlltoall;
}

}  // namespace

NativeBackend::NativeBackend(const Config&, const Topology& topology, Arena* arena, Links& links,
                             WaitControl& wait)
    : topology_(topology), arena_(arena), links_(links), wait_(wait) {}

std::optional<std::string> NativeBackend::why_not(const Work& work) const {
  if (!moves_data(work.kind)) return std::string(name_of(work.kind)) + " moves no data.";
  if (work.device >= 0) return "It works on host memory, and the tensors are on a device.";
  if (work.members == nullptr ||
      !std::binary_search(work.members->begin(), work.members->end(), topology_.rank)) {
    return "Rank " + std::to_string(topology_.rank) + " is not in the process set.";
  }
  if (reduces(work.kind) && !supports(work.op, work.dtype)) {
    return std::string(name_of(work.op)) + " is not defined on " +
           std::string(name_of(work.dtype)) + ".";
  }
  if (reduces(work.kind) && work.dtype == DataType::kBool &&
      (work.prescale != 1.0 || work.postscale != 1.0)) {
    return "bool tensors can't be scaled.";
  }
  if (arena_ == nullptr && topology_.hosts[topology_.host_of(topology_.rank)].size() > 1) {
    return "The ranks of this host share no memory.";
  }
  return std::nullopt;
}

const Placement& NativeBackend::placement_of(const Work& work) {
  Placement& known = placements_[work.process_set];
  if (known.members != *work.members) known = place(topology_, *work.members);
  return known;
}

Status NativeBackend::execute(Work& work) {
  Status status = dispatch(work);
  finish_streaming();  // outputs may have been written around the cache
  return status;
}

Status NativeBackend::dispatch(Work& work) {
  const Placement& placement = placement_of(work);
  std::optional<ArenaTurn> turn;
  if (placement.local_size() > 1) {
    turn.emplace(*arena_, work.sequence, placement.lanes, placement.my_local);
  }
  const NativeJob job{work, placement, turn, links_, wait_, stores_, stream_stores_};
  switch (work.kind) {
    case Collective::kAllreduce:
      return native_allreduce(job);
    case Collective::kAllgather:
      return native_allgather(job);
    case Collective::kBroadcast:
      return native_broadcast(job);
    case Collective::kAlltoall:
      return native_alltoall(job);
    case Collective::kReducescatter:
      return native_reducescatter(job);
    default:
      return Status::invalid_argument(std::string(name_of(work.kind)) + " moves no data.");
  }
}

SegmentList segments_of(const Work& work) {
  SegmentList list;
  for (const WorkTensor& tensor : work.tensors) {
    const std::size_t bytes = element_count(tensor.shape) * size_of(work.dtype);
    list.add({static_cast<const std::byte*>(tensor.input), static_cast<std::byte*>(tensor.output),
              bytes});
  }
  return list;
}

std::size_t row_bytes_of(const WorkTensor& tensor, DataType dtype) {
  std::size_t bytes = size_of(dtype);
  for (std::size_t i = 1; i < tensor.shape.size(); ++i) bytes *= tensor.shape[i];
  return bytes;
}

Status allocate_output(WorkTensor& tensor, Shape shape, DataType dtype) {
  const std::size_t bytes = element_count(shape) * size_of(dtype);
  tensor.output_shape = std::move(shape);
  if (!tensor.allocate) return Status::ok();
  tensor.output = tensor.allocate(tensor.output_shape, bytes);
  if (tensor.output == nullptr && bytes > 0) {
    return Status::aborted("There is no memory for an output of " + std::to_string(bytes) +
                           " bytes, shape " + to_string(tensor.output_shape) + ".");
  }
  return Status::ok();
}

void reduce_alone(const View& view, const Reduction& reduction) {
  if (reduction.prescale == 1.0 && reduction.postscale == 1.0) {
    copy_through(view, output_store_for(view.bytes));
    return;
  }
  view.for_each([&](const Segment& part) {
    const std::byte* const source = part.in;
    reduce(reduction, {&source, 1}, part.bytes / size_of(reduction.dtype),
           {part.out, output_store_of(part, output_store_for(view.bytes))});
  });
}

Status share_on_host(const NativeJob& job, const std::vector<View>& views) {
  if (!job.turn) return Status::ok();
  const SegmentList mine = outputs_of(views[job.placement.my_local]);
  return host_exchange(*job.turn, {}, mine, job.stream_stores,
                       [&](std::span<const std::vector<std::byte>>, ExchangePlan& plan) {
                         for (const View& view : views) {
                           plan.stream_bytes.push_back(view.bytes);
                           plan.landings.push_back({0, view});
                         }
                         return Status::ok();
                       });
}

Status among_hosts(const NativeJob& job, std::size_t parts,
                   const std::function<Status(const Ring&)>& work) {
  if (job.placement.my_local >= parts) return Status::ok();
  const std::vector<Rank> ranks = job.placement.across_hosts(job.placement.my_local);
  return work(Ring{ranks, job.placement.my_host, job.links, job.wait});
}

}  // namespace hvd
