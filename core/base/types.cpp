#include "base/types.h"

#include <array>

namespace hvd {

namespace {

struct DataTypeInfo {
  std::string_view name;
  std::size_t size;
};

constexpr std::array<DataTypeInfo, kDataTypeCount> kDataTypes{{
    {"uint8", 1},
    {"int8", 1},
    {"uint16", 2},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"float16", 2},
    {"float32", 4},
    {"float64", 8},
    {"bool", 1},
    {"bfloat16", 2},
    {"complex64", 8},
    {"complex128", 16},
}};

constexpr std::array<std::string_view, 6> kReduceOps{"Average", "Sum", "Adasum",
                                                     "Min",     "Max", "Product"};

constexpr std::array<std::string_view, kCollectiveCount> kCollectives{
    "ALLREDUCE", "ALLGATHER", "BROADCAST",       "ALLTOALL",          "REDUCESCATTER",
    "BARRIER",   "JOIN",      "ADD_PROCESS_SET", "REMOVE_PROCESS_SET"};

}  // namespace

std::size_t size_of(DataType dtype) { return kDataTypes[static_cast<std::size_t>(dtype)].size; }

std::string_view name_of(DataType dtype) {
  return kDataTypes[static_cast<std::size_t>(dtype)].name;
}

std::string_view name_of(ReduceOp op) { return kReduceOps[static_cast<std::size_t>(op)]; }

std::string_view name_of(Collective kind) { return kCollectives[static_cast<std::size_t>(kind)]; }

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t dimension : shape) count *= dimension;
  return count;
}

bool supports(ReduceOp op, DataType dtype) {
  const bool is_complex = dtype == DataType::kComplex64 || dtype == DataType::kComplex128;
  switch (op) {
    case ReduceOp::kSum:
      return true;  // bool: logical or
    case ReduceOp::kAverage:
      return dtype != DataType::kBool;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !is_complex;  // complex numbers have no order
    case ReduceOp::kProduct:
      return !is_complex;
    case ReduceOp::kAdasum:
      return false;
  }
  return false;
}

}  // namespace hvd
