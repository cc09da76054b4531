// CacheAdvice: notices that the response cache is too small for a job, and says so once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>

#include "engine/name_view.h"

namespace hvd {

class CacheAdvice {
 public:
  explicit CacheAdvice(std::int64_t capacity) : capacity_(capacity) {}

  // A tensor that may come again gets a new cache id. One that had lost its id for lack of room
  // shows that the cache thrashes; by then about all tensors of a step have been seen.
  void assigned(const NameView& name);
  // A tensor loses its id for lack of room.
  void evicted(const NameView& name);
  // The advice, once.
  std::optional<std::string> take();

 private:
  static constexpr std::size_t kCounted = 1 << 20;

  std::int64_t capacity_;
  std::unordered_set<std::size_t> seen_;  // hashes of names
  std::unordered_set<std::size_t> lost_;
  bool due_ = false;
  bool given_ = false;
};

}  // namespace hvd
