#include "c_api/c_api.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "c_api/call_checks.h"
#include "c_api/process_engine.h"

struct hvd_operation {
  std::shared_ptr<hvd::Engine> engine;
  std::shared_ptr<hvd::Handle> handle;
};

namespace hvd {

namespace {

int refuse(int code, std::string_view text, char* error, std::size_t error_bytes) {
  if (error_bytes > 0) {
    const std::size_t length = std::min(text.size(), error_bytes - 1);
    std::memcpy(error, text.data(), length);
    error[length] = '\0';
  }
  return code;
}

Submission submission_of(const hvd_call& call, std::size_t members) {
  Submission submission;
  submission.urgent =
      true;  // it is waited for: by the caller, or by a framework that does not say when
  // A join has no tensor but is a request like others.
  const auto count = static_cast<std::size_t>(std::max(call.tensor_count, 1));
  submission.requests.resize(count);
  submission.tensors.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    Request& request = submission.requests[i];
    request.kind = static_cast<Collective>(call.collective);
    request.process_set = call.process_set;
    request.op = static_cast<ReduceOp>(call.op);
    request.prescale = call.prescale;
    request.postscale = call.postscale;
    request.root = call.root;
    request.cacheable = call.cacheable != 0;
    if (request.op == ReduceOp::kAverage) {
      request.op = ReduceOp::kSum;
      request.postscale /= static_cast<double>(members);
    }
    if (call.group != nullptr) {
      request.group = call.group;
      request.group_size = call.tensor_count;
    }
    if (call.tensor_count == 0) {
      request.name = "join.noname";
      continue;
    }
    const hvd_tensor& given = call.tensors[i];
    request.name = given.name;
    request.dtype = static_cast<DataType>(given.dtype);
    request.shape.assign(given.shape, given.shape + given.dimensions);
    WorkTensor& tensor = submission.tensors[i];
    tensor.input = given.input;
    tensor.output = given.output;
    tensor.shape = request.shape;
    if (given.output == nullptr && call.allocate != nullptr) {
      tensor.allocate = [allocate = call.allocate, user = call.user,
                         index = static_cast<std::int32_t>(i)](const Shape& shape,
                                                               std::size_t bytes) {
        return allocate(user, index, shape.data(), static_cast<std::int32_t>(shape.size()), bytes);
      };
    }
    if (request.kind != Collective::kAlltoall) continue;
    if (call.splits != nullptr) {
      tensor.splits.assign(call.splits, call.splits + call.split_count);
    } else {
      tensor.splits.assign(members, request.shape[0] / static_cast<std::int64_t>(members));
    }
  }
  return submission;
}

void report(const Handle& handle, void (*take)(void*, const hvd_outcome*), void* user) {
  const std::vector<std::int64_t>& splits = handle.results[0].received_splits;
  const hvd_outcome outcome{static_cast<std::int32_t>(handle.status().code()),
                            handle.status().text().c_str(), splits.data(),
                            static_cast<std::int32_t>(splits.size()), handle.value};
  take(user, &outcome);
}

int submit_checked(const hvd_call& call, hvd_operation** operation, char* error,
                   std::size_t error_bytes) {
  const std::shared_ptr<Engine> engine = process_engine();
  if (engine == nullptr) {
    return refuse(HVD_NOT_INITIALIZED, "Horovod has not been initialized; use hvd.init().", error,
                  error_bytes);
  }
  const auto members = engine->members_of(call.process_set);
  const CallFault fault = check_call(call, members.get(), engine->topology().rank);
  if (fault.code != HVD_OK) return refuse(fault.code, fault.text, error, error_bytes);
  Submission submission = submission_of(call, members->size());
  if (call.done != nullptr) {
    submission.on_done = [done = call.done, user = call.user](Handle& handle) {
      report(handle, done, user);
    };
  }
  std::shared_ptr<Handle> handle;
  const Status status = engine->submit(std::move(submission), handle);
  if (!status.is_ok()) {
    return refuse(static_cast<int>(status.code()), status.text(), error, error_bytes);
  }
  if (operation != nullptr) *operation = new hvd_operation{engine, std::move(handle)};
  return HVD_OK;
}

int submit(const hvd_call* call, hvd_operation** operation, char* error, std::size_t error_bytes) {
  try {
    return submit_checked(*call, operation, error, error_bytes);
  } catch (const std::exception& failure) {  // no memory
    return refuse(HVD_ABORTED, failure.what(), error, error_bytes);
  }
}

void wait(hvd_operation* operation, void (*take)(void*, const hvd_outcome*), void* user) {
  const std::unique_ptr<hvd_operation> owned(operation);
  while (!owned->engine->wait(*owned->handle)) {
  }
  report(*owned->handle, take, user);
}

int identity(int what) {
  const std::shared_ptr<Engine> engine = process_engine();
  if (engine == nullptr) return -1;
  const Topology& topology = engine->topology();
  const auto& local_ranks = topology.hosts[topology.host_of(topology.rank)];
  switch (what) {
    case HVD_RANK:
      return topology.rank;
    case HVD_SIZE:
      return topology.size;
    case HVD_LOCAL_RANK:
      return static_cast<int>(std::ranges::find(local_ranks, topology.rank) - local_ranks.begin());
    case HVD_LOCAL_SIZE:
      return static_cast<int>(local_ranks.size());
    default:
      return -1;
  }
}

int process_set(int id, int* set_rank, int* size) {
  const std::shared_ptr<Engine> engine = process_engine();
  if (engine == nullptr) return HVD_NOT_INITIALIZED;
  const auto members = engine->members_of(id);
  if (members == nullptr) return HVD_INVALID_ARGUMENT;
  const auto found = std::ranges::lower_bound(*members, engine->topology().rank);
  const bool member = found != members->end() && *found == engine->topology().rank;
  *set_rank = member ? static_cast<int>(found - members->begin()) : -1;
  *size = static_cast<int>(members->size());
  return HVD_OK;
}

}  // namespace

const hvd_api* c_api() {
  static const hvd_api api{HVD_API_VERSION, submit, wait, identity, process_set};
  return &api;
}

}  // namespace hvd
