// The words every layer uses: ranks, shapes, data types, reduction operators, kinds of collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

using Rank = std::int32_t;          // global rank in the world, unless a name says "set rank"
using ProcessSetId = std::int32_t;  // 0 is the global process set
using Shape = std::vector<std::int64_t>;

inline constexpr ProcessSetId kGlobalProcessSet = 0;

// Values are part of the wire format and of horovod.common.dtypes; append only.
enum class DataType : std::uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  kBfloat16 = 10,
  kComplex64 = 11,
  kComplex128 = 12,
};
inline constexpr int kDataTypeCount = 13;

// Values are visible to users (hvd.Average == 0, ...); they never change.
enum class ReduceOp : std::uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};

// Values are part of the wire format; append only.
enum class Collective : std::uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kBarrier = 5,
  kJoin = 6,
  kAddProcessSet = 7,
  kRemoveProcessSet = 8,
};
inline constexpr int kCollectiveCount = 9;

std::size_t size_of(DataType dtype);
std::string_view name_of(DataType dtype);        // "float32"
std::string_view name_of(ReduceOp op);           // "Average"
std::string_view name_of(Collective kind);       // "ALLREDUCE", as the mismatch texts print it
std::string to_string(const Shape& shape);       // "[2, 3]"
std::int64_t element_count(const Shape& shape);  // product of dimensions; 1 for a scalar

// True when `op` is defined on `dtype`: the published table of op x dtype (docs/dtypes.md).
bool supports(ReduceOp op, DataType dtype);

}  // namespace hvd
