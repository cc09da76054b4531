#include "c_api/call_checks.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>

namespace hvd {

namespace {

std::string title_of(Collective kind) {
  std::string title(name_of(kind));
  std::transform(title.begin() + 1, title.end(), title.begin() + 1,
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return title;
}

CallFault invalid(std::string text) { return {HVD_INVALID_ARGUMENT, std::move(text)}; }

CallFault check_operator(const hvd_call& call, Collective kind) {
  const auto op = static_cast<ReduceOp>(call.op);
  const bool adds = op == ReduceOp::kAverage || op == ReduceOp::kSum;
  if (kind == Collective::kReducescatter && !adds) {
    return {HVD_UNSUPPORTED, "Reducescatter currently only supports AVERAGE and SUM."};
  }
  if (op == ReduceOp::kAdasum) {
    return {HVD_UNSUPPORTED, "Adasum is not available yet; use Average or Sum."};
  }
  for (const hvd_tensor& tensor : std::span(call.tensors, call.tensor_count)) {
    const auto dtype = static_cast<DataType>(tensor.dtype);
    if (supports(op, dtype)) continue;
    return invalid(
        std::string(tensor.name) + ": " + std::string(name_of(op)) + " is not defined for " +
        std::string(name_of(dtype)) +
        " tensors. Cast the tensor or use another operator (docs/dtypes.md has the table).");
  }
  return {};
}

CallFault check_not_scalar(const hvd_call& call, Collective kind) {
  for (const hvd_tensor& tensor : std::span(call.tensors, call.tensor_count)) {
    if (tensor.dimensions > 0) continue;
    return invalid("Process-set rank zero tried to " + std::string(name_of(kind)) +
                   " a rank-zero tensor. (" + tensor.name +
                   " needs a first dimension; reshape it to (1,).)");
  }
  return {};
}

CallFault check_splits(const hvd_call& call, std::size_t members) {
  const std::int64_t rows = call.tensors[0].shape[0];
  if (call.splits == nullptr) {
    if (rows % static_cast<std::int64_t>(members) == 0) return {};
    return invalid(
        "splits not provided, but first dimension of tensor is not an even multiple of the number "
        "of "
        "workers.");
  }
  const std::span splits(call.splits, call.split_count);
  if (splits.size() != members) {
    return invalid("Number of entries in splits does not equal number of workers.");
  }
  if (std::ranges::any_of(splits, [](std::int64_t split) { return split < 0; })) {
    return invalid("alltoall expects splits that are not negative.");
  }
  if (std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) > rows) {
    return invalid("Sum of splits entries is greater than the first dimension of tensor.");
  }
  return {};
}

}  // namespace

CallFault check_call(const hvd_call& call, const std::vector<Rank>* members, Rank own_rank) {
  const auto kind = static_cast<Collective>(call.collective);
  if (members == nullptr) {
    return invalid(title_of(kind) +
                   ": Process set provided does not exist, or has not been registered.");
  }
  if (!std::ranges::binary_search(*members, own_rank)) {
    return invalid(title_of(kind) + ": Rank " + std::to_string(own_rank) +
                   " is not a member of the provided process set.");
  }
  switch (kind) {
    case Collective::kAllreduce:
      return check_operator(call, kind);
    case Collective::kReducescatter:
      if (CallFault fault = check_operator(call, kind); fault.code != HVD_OK) return fault;
      return check_not_scalar(call, kind);
    case Collective::kAllgather:
      return check_not_scalar(call, kind);
    case Collective::kBroadcast:
      if (std::ranges::binary_search(*members, call.root)) return {};
      return invalid("broadcast received invalid root rank " + std::to_string(call.root) +
                     " for provided process set");
    case Collective::kAlltoall:
      if (CallFault fault = check_not_scalar(call, kind); fault.code != HVD_OK) return fault;
      return check_splits(call, members->size());
    default:
      return {};
  }
}

}  // namespace hvd
