// Operation: one tensor that this rank has submitted. OperationTable: all of them that are in flight,
// by process set and name. Safe from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backends/backend.h"
#include "engine/handle.h"
#include "wire/messages.h"

namespace hvd {

struct Operation {
  Request request;
  WorkTensor tensor;
  std::shared_ptr<Handle> handle;
  std::size_t index = 0;  // of its result in the handle
  std::chrono::steady_clock::time_point submitted{};
  std::uint64_t serial = 0;  // in the flight recorder

  // Guarded by the negotiation role.
  bool announced = false;               // the others count on it
  std::optional<CacheId> announced_id;  // announced by this id alone
  std::atomic<bool> executing{false};   // handed to the executor, which alone may finish it

  void finish(const Status& status) { handle->finish_one(status); }
};

// The first operation that a handle stands for and that has not ended; nullptr: none.
std::shared_ptr<Operation> first_in_flight(const Handle& handle);

class OperationTable {
 public:
  // Adds all of them or, when one's name is in flight already, none; then says so.
  Status add(const std::vector<std::shared_ptr<Operation>>& operations);

  std::shared_ptr<Operation> find(ProcessSetId set, std::string_view name) const;
  void remove(const Operation& operation);
  std::vector<std::shared_ptr<Operation>> all() const;
  std::size_t size() const;
  std::uint64_t added() const;  // ever

 private:
  struct Key {
    ProcessSetId set;
    std::string_view name;  // of the operation's own request: lives as long as the entry
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      return std::hash<std::string_view>()(key.name) ^
             (static_cast<std::size_t>(key.set) * 0x9e3779b97f4a7c15ull);
    }
  };

  mutable std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<Operation>, KeyHash> operations_;
  std::uint64_t added_ = 0;
};

}  // namespace hvd
