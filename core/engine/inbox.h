// Inbox: what callers' threads leave for the negotiation role to pick up.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/operation_table.h"

namespace hvd {

class Inbox {
 public:
  struct Content {
    std::vector<std::shared_ptr<Operation>> operations;
    std::vector<bool> urgent;  // parallel to `operations`
    std::vector<UrgentMark> marks;
    std::vector<TimelineCommand> timeline;
    bool shutdown = false;
  };

  void put(const std::vector<std::shared_ptr<Operation>>& operations, bool urgent) {
    const std::lock_guard lock(mutex_);
    for (const auto& operation : operations) {
      content_.operations.push_back(operation);
      content_.urgent.push_back(urgent);
    }
    waiting_.store(true, std::memory_order_seq_cst);
  }

  void put(UrgentMark mark) {
    const std::lock_guard lock(mutex_);
    content_.marks.push_back(std::move(mark));
    waiting_.store(true, std::memory_order_seq_cst);
  }

  void put(TimelineCommand command) {
    const std::lock_guard lock(mutex_);
    content_.timeline.push_back(std::move(command));
    waiting_.store(true, std::memory_order_seq_cst);
  }

  void put_shutdown() {
    const std::lock_guard lock(mutex_);
    content_.shutdown = true;
    waiting_.store(true, std::memory_order_seq_cst);
  }

  // Something lies here, or somebody wants the negotiation role's holder to look around.
  bool has_content() const { return waiting_.load(std::memory_order_seq_cst); }

  Content take() {
    const std::lock_guard lock(mutex_);
    waiting_.store(false, std::memory_order_seq_cst);
    return std::exchange(content_, {});
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> waiting_{false};
  Content content_;
};

}  // namespace hvd
