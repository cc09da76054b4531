// EvictionOrder: the root's choice of cache ids to give up. Ids leave the order while an operation
// is pending under them, so what it offers is always free to go.
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
    const auto [it, is_new] = where_.try_emplace(id);
    Place& place = it->second;
    if (is_new) {
      place.position = free_.insert(free_.end(), id);
    } else {  // moving a node costs no allocation
      free_.splice(free_.end(), place.is_free ? free_ : held_, place.position);
    }
    place.is_free = true;
  }
  // `id` is in use.
  void hold(CacheId id) {
    const auto it = where_.find(id);
    if (it == where_.end() || !it->second.is_free) return;
    held_.splice(held_.end(), free_, it->second.position);
    it->second.is_free = false;
  }
  // `id` is void.
  void forget(CacheId id) {
    const auto it = where_.find(id);
    if (it == where_.end()) return;
    (it->second.is_free ? free_ : held_).erase(it->second.position);
    where_.erase(it);
  }
  // The free id that was not used for the longest time.
  std::optional<CacheId> oldest() const {
    return free_.empty() ? std::nullopt : std::optional(free_.front());
  }

 private:
  struct Place {
    std::list<CacheId>::iterator position;
    bool is_free = false;
  };

  std::list<CacheId> free_;
  std::list<CacheId> held_;
  std::unordered_map<CacheId, Place> where_;
};

}  // namespace hvd
