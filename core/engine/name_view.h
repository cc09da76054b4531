// NameView: what identifies an operation, (process set, name), as a key that owns no string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "wire/messages.h"

namespace hvd {

// Whoever stores one keeps the string alive.
struct NameView {
  ProcessSetId process_set = kGlobalProcessSet;
  std::string_view name;
  bool operator==(const NameView&) const = default;
};

struct NameViewHash {
  std::size_t operator()(const NameView& key) const noexcept {
    const auto set = static_cast<std::uint32_t>(key.process_set);
    return std::hash<std::string_view>()(key.name) + std::size_t{set} * 0x9e3779b97f4a7c15u;
  }
};

inline NameView name_of(const Request& request) { return {request.process_set, request.name}; }

}  // namespace hvd
