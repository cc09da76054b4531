#include "engine/operation_table.h"

namespace hvd {

std::shared_ptr<Operation> first_in_flight(const Handle& handle) {
  for (const auto& held : handle.operations) {
    if (auto operation = held.lock()) return operation;
  }
  return nullptr;
}

Status OperationTable::add(const std::vector<std::shared_ptr<Operation>>& operations) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Request& request = operations[i]->request;
    const bool added =
        operations_.try_emplace({request.process_set, request.name}, operations[i]).second;
    if (added) continue;
    for (std::size_t j = 0; j < i; ++j) {
      operations_.erase({operations[j]->request.process_set, operations[j]->request.name});
    }
    return Status::invalid_argument(
        "Requested to allreduce, allgather, or broadcast a tensor with the same name as another "
        "tensor that is currently being processed.  If you want to request another tensor, use a "
        "different tensor name. (tensor name: " +
        request.name + ")");
  }
  added_ += operations.size();
  return Status::ok();
}

std::shared_ptr<Operation> OperationTable::find(ProcessSetId set, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = operations_.find({set, name});
  return found == operations_.end() ? nullptr : found->second;
}

void OperationTable::remove(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  operations_.erase({operation.request.process_set, operation.request.name});
}

std::vector<std::shared_ptr<Operation>> OperationTable::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Operation>> operations;
  operations.reserve(operations_.size());
  for (const auto& [key, operation] : operations_) operations.push_back(operation);
  return operations;
}

std::size_t OperationTable::size() const {
  const std::lock_guard lock(mutex_);
  return operations_.size();
}

std::uint64_t OperationTable::added() const {
  const std::lock_guard lock(mutex_);
  return added_;
}

}  // namespace hvd
