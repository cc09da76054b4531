// A custom call of a compiled function, as its config text describes it.
//
// The text is written by horovod/tensorflow/xla.py when the function is traced, so everything in it is
// static: the shapes too, because XLA compiles for fixed ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace hvd::tensorflow {

struct XlaTensor {
  DataType dtype = DataType::kFloat32;
  std::int64_t output_rows = 0;  // first dimension of the output; the others are those of the input
  Shape shape;                   // of the input
};

struct XlaCall {
  Collective kind = Collective::kAllreduce;
  std::int32_t op = 0;
  double prescale = 1;
  double postscale = 1;
  std::int32_t root = -1;
  std::int32_t process_set = 0;
  bool grouped = false;
  std::int32_t ticket_at = -1;  // which argument is the ticket of an earlier call; -1: none
  std::vector<XlaTensor> tensors;
  std::string name;  // of the operation, or of the group
};

// Whether every output is as large as its input.
bool keeps_size(Collective kind);

Shape output_shape(const XlaTensor& tensor);

// A question about this process, whose answer is one int32.
struct XlaQuestion {
  enum class Kind : std::uint8_t { kIdentity, kSetSize, kSetRank, kIncluded };
  Kind kind = Kind::kIdentity;
  std::int32_t what = 0;         // kIdentity: HVD_RANK and so on
  std::int32_t process_set = 0;  // otherwise
};

// "kind op prescale postscale root process_set grouped ticket_at count", for each tensor "dtype
// output_rows dimensions" and its dimensions, then the name, which is the rest of the text. Nothing:
// malformed.
std::optional<XlaCall> parse_xla_call(std::string_view text);

// "kind what process_set". Nothing: malformed.
std::optional<XlaQuestion> parse_xla_question(std::string_view text);

}  // namespace hvd::tensorflow
