// EvictionOrder: the root's choice of cache ids to give up. Ids leave the order while an operation is
// pending under them, so what it offers is always free to go.
#pragma once

#include <list>
#include <optional>
#include <unordered_map>

#include "wire/messages.h"

namespace hvd {

class EvictionOrder {
 public:
  // `id` was just used and is free: it goes last.
  void release(CacheId id) {
    hold(id);
    order_.push_back(id);
    where_.emplace(id, std::prev(order_.end()));
  }
  // `id` is in use, or void.
  void hold(CacheId id) {
    const auto it = where_.find(id);
    if (it == where_.end()) return;
    order_.erase(it->second);
    where_.erase(it);
  }
  // The free id that was not used for the longest time.
  std::optional<CacheId> oldest() const {
    return order_.empty() ? std::nullopt : std::optional(order_.front());
  }

 private:
  std::list<CacheId> order_;
  std::unordered_map<CacheId, std::list<CacheId>::iterator> where_;
};

}  // namespace hvd
