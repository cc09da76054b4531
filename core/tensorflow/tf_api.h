// The part of TensorFlow's C API that the plug-in uses: our own declarations of it, and the functions,
// found at run time in whatever libraries of TensorFlow are loaded. So one binary, built without
// TensorFlow, serves every version that has them.
// Source of names, signatures and values: tensorflow/c/{c_api,ops,kernels,tf_tensor,tf_status}.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// Opaque to us.
struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;

struct TF_StringView {
  const char* data;
  std::size_t len;
};

enum TF_Code : int {
  TF_OK = 0,
  TF_UNKNOWN = 2,
  TF_INVALID_ARGUMENT = 3,
  TF_RESOURCE_EXHAUSTED = 8,
  TF_FAILED_PRECONDITION = 9,
  TF_ABORTED = 10,
};

enum TF_DataType : int {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_UINT8 = 4,
  TF_INT16 = 5,
  TF_INT8 = 6,
  TF_COMPLEX64 = 8,
  TF_INT64 = 9,
  TF_BOOL = 10,
  TF_BFLOAT16 = 14,
  TF_UINT16 = 17,
  TF_COMPLEX128 = 18,
  TF_HALF = 19,
};

// X(return type, name without "TF_", parameters)
#define HVD_TF_FUNCTIONS(X)                                                                     \
  X(TF_Status*, NewStatus, ())                                                                  \
  X(void, DeleteStatus, (TF_Status*))                                                           \
  X(void, SetStatus, (TF_Status*, TF_Code, const char*))                                        \
  X(TF_Code, GetCode, (const TF_Status*))                                                       \
  X(const char*, Message, (const TF_Status*))                                                   \
  X(TF_DataType, TensorType, (const TF_Tensor*))                                                \
  X(int, NumDims, (const TF_Tensor*))                                                           \
  X(std::int64_t, Dim, (const TF_Tensor*, int))                                                 \
  X(void*, TensorData, (const TF_Tensor*))                                                      \
  X(void, DeleteTensor, (TF_Tensor*))                                                           \
  X(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char*))                             \
  X(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                   \
  X(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                  \
  X(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                 \
  X(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                    \
  X(void, OpDefinitionBuilderSetShapeInferenceFunction,                                         \
    (TF_OpDefinitionBuilder*, void (*)(TF_ShapeInferenceContext*, TF_Status*)))                 \
  X(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                          \
  X(TF_ShapeHandle*, NewShapeHandle, ())                                                        \
  X(void, DeleteShapeHandle, (TF_ShapeHandle*))                                                 \
  X(std::int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                  \
  X(void, ShapeInferenceContextGetInput,                                                        \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                              \
  X(void, ShapeInferenceContextSetOutput,                                                       \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                              \
  X(int, ShapeInferenceContextRankKnown, (TF_ShapeInferenceContext*, TF_ShapeHandle*))          \
  X(std::int64_t, ShapeInferenceContextRank, (TF_ShapeInferenceContext*, TF_ShapeHandle*))      \
  X(TF_ShapeHandle*, ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                  \
  X(TF_ShapeHandle*, ShapeInferenceContextVectorFromSize,                                       \
    (TF_ShapeInferenceContext*, std::size_t))                                                   \
  X(void, ShapeInferenceContextSubshape,                                                        \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, std::int64_t, std::int64_t, TF_ShapeHandle*,   \
     TF_Status*))                                                                               \
  X(void, ShapeInferenceContextConcatenateShapes,                                               \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle*, TF_Status*)) \
  X(TF_KernelBuilder*, NewKernelBuilder,                                                        \
    (const char*, const char*, void* (*)(TF_OpKernelConstruction*),                             \
     void (*)(void*, TF_OpKernelContext*), void (*)(void*)))                                    \
  X(TF_KernelBuilder*, NewAsyncKernelBuilder,                                                   \
    (const char*, const char*, void* (*)(TF_OpKernelConstruction*),                             \
     void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*), void (*)(void*)))     \
  X(void, RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                  \
  X(TF_StringView, OpKernelConstruction_GetName, (TF_OpKernelConstruction*))                    \
  X(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                 \
  X(void, OpKernelConstruction_GetAttrInt64,                                                    \
    (TF_OpKernelConstruction*, const char*, std::int64_t*, TF_Status*))                         \
  X(void, OpKernelConstruction_GetAttrFloat,                                                    \
    (TF_OpKernelConstruction*, const char*, float*, TF_Status*))                                \
  X(void, OpKernelConstruction_GetAttrBool,                                                     \
    (TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*))                        \
  X(void, OpKernelConstruction_GetAttrSize,                                                     \
    (TF_OpKernelConstruction*, const char*, std::int32_t*, std::int32_t*, TF_Status*))          \
  X(void, OpKernelConstruction_GetAttrString,                                                   \
    (TF_OpKernelConstruction*, const char*, char*, std::size_t, TF_Status*))                    \
  X(int, NumInputs, (TF_OpKernelContext*))                                                      \
  X(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                        \
  X(TF_Tensor*, AllocateOutput,                                                                 \
    (TF_OpKernelContext*, int, TF_DataType, const std::int64_t*, int, std::size_t, TF_Status*)) \
  X(TF_Tensor*, ForwardInputOrAllocateOutput,                                                   \
    (TF_OpKernelContext*, const int*, int, int, const std::int64_t*, int, int*, TF_Status*))    \
  X(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                           \
  X(void, RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))

namespace hvd::tensorflow {

struct Api {
#define HVD_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  HVD_TF_FUNCTIONS(HVD_DECLARE)
#undef HVD_DECLARE
};

extern Api tf;

// Fills `tf`; returns the names of the functions that no loaded library has, separated by spaces.
std::string find_api();
// The address of a symbol in a loaded library whose path has "tensorflow" in it; nullptr if none has it.
void* find_symbol(const char* name);

// A TF_Status with an owner.
class TfStatus {
 public:
  TfStatus() : status_(tf.NewStatus()) {}
  ~TfStatus() { tf.DeleteStatus(status_); }
  TfStatus(const TfStatus&) = delete;
  TfStatus& operator=(const TfStatus&) = delete;

  operator TF_Status*() const { return status_; }  // NOLINT: stands for it in every call
  bool is_ok() const { return tf.GetCode(status_) == TF_OK; }
  std::string text() const { return tf.Message(status_); }

 private:
  TF_Status* status_;
};

}  // namespace hvd::tensorflow
