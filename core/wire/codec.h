// Codec: the bytes of a Message. Little-endian, fixed widths, 64-bit counts, first byte the version
// of the format. Decoding is total: any input gives a message or a Status, reads only the input,
// throws nothing but bad_alloc, and allocates no more than about a hundred times the input (a cached
// tensor of a response takes 6 bytes here and 184 in memory, in a vector that grows).
//
// Every message has one encoding: what decodes also encodes to the same bytes again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "wire/messages.h"

namespace hvd {

inline constexpr std::uint8_t kWireVersion = 1;

// Appends the encoding of `message` to `out`.
void encode(const Message& message, std::vector<std::byte>& out);
std::vector<std::byte> encode(const Message& message);

// `bytes` must be exactly one message; `out` is unspecified after an error.
Status decode(std::span<const std::byte> bytes, Message& out);

}  // namespace hvd
