// TensorFlow's numbers for element types, and ours.
#pragma once

#include <optional>

#include "base/types.h"
#include "tensorflow/tf_api.h"

namespace hvd::tensorflow {

inline std::optional<DataType> from_tf(TF_DataType dtype) {
  switch (dtype) {
    case TF_UINT8:
      return DataType::kUint8;
    case TF_INT8:
      return DataType::kInt8;
    case TF_UINT16:
      return DataType::kUint16;
    case TF_INT16:
      return DataType::kInt16;
    case TF_INT32:
      return DataType::kInt32;
    case TF_INT64:
      return DataType::kInt64;
    case TF_HALF:
      return DataType::kFloat16;
    case TF_FLOAT:
      return DataType::kFloat32;
    case TF_DOUBLE:
      return DataType::kFloat64;
    case TF_BOOL:
      return DataType::kBool;
    case TF_BFLOAT16:
      return DataType::kBfloat16;
    case TF_COMPLEX64:
      return DataType::kComplex64;
    case TF_COMPLEX128:
      return DataType::kComplex128;
  }
  return std::nullopt;
}

}  // namespace hvd::tensorflow
