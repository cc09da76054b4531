// Json: appending values to a text. What is written here is always valid JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hvd::json {

// In quotes; control characters, quotes and backslashes escaped; bytes that are no UTF-8 become U+FFFD.
void append_string(std::string& out, std::string_view text);
void append_integer(std::string& out, std::int64_t value);
// In thousandths: 1234567 becomes 1234.567. For times: nanoseconds are thousandths of microseconds.
void append_thousandths(std::string& out, std::int64_t value);
// In full precision; what JSON has no word for (infinity, not a number) becomes null.
void append_number(std::string& out, double value);
// [3, 4]
void append_list(std::string& out, std::span<const std::int64_t> values);

std::string quoted(std::string_view text);

}  // namespace hvd::json
