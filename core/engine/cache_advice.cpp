// CacheAdvice: counts distinct names and watches for those that come back after an eviction.
#include "engine/cache_advice.h"

namespace hvd {

void CacheAdvice::assigned(const NameView& name) {
  if (given_ || due_) return;
  const std::size_t hash = NameViewHash()(name);
  if (seen_.size() < kCounted) seen_.insert(hash);
  due_ = lost_.contains(hash);
}

void CacheAdvice::evicted(const NameView& name) {
  if (given_ || due_ || lost_.size() >= kCounted) return;
  lost_.insert(NameViewHash()(name));
}

std::optional<std::string> CacheAdvice::take() {
  if (!due_) return std::nullopt;
  due_ = false;
  given_ = true;
  const std::string wanted = std::to_string(seen_.size());
  seen_ = {};
  lost_ = {};
  return "The response cache holds " + std::to_string(capacity_) +
         " tensors, but this job keeps using at least " + wanted +
         ": tensors lose their place before they come again, which makes each step slower. Set "
         "HOROVOD_CACHE_CAPACITY to " +
         wanted + " or more.";
}

}  // namespace hvd
