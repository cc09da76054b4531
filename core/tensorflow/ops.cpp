// The ops as TensorFlow's graphs name them (names, attributes and outputs of Horovod 0.28.1), and their
// shapes.
#include <string>
#include <vector>

#include "tensorflow/plugin.h"

namespace hvd::tensorflow {

namespace {

// --- Shapes ---------------------------------------------------------------------------------------

class ShapeHandle {
 public:
  ShapeHandle() : handle_(tf.NewShapeHandle()) {}
  explicit ShapeHandle(TF_ShapeHandle* handle) : handle_(handle) {}
  ~ShapeHandle() { tf.DeleteShapeHandle(handle_); }
  ShapeHandle(const ShapeHandle&) = delete;
  ShapeHandle& operator=(const ShapeHandle&) = delete;
  operator TF_ShapeHandle*() const { return handle_; }  // NOLINT: stands for it in every call

 private:
  TF_ShapeHandle* handle_;
};

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

// Every output has the shape of the input of the same number.
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto count = static_cast<int>(tf.ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < count; ++i) {
    const ShapeHandle shape;
    tf.ShapeInferenceContextGetInput(context, i, shape, status);
    if (tf.GetCode(status) != TF_OK) return;
    tf.ShapeInferenceContextSetOutput(context, i, shape, status);
    if (tf.GetCode(status) != TF_OK) return;
  }
}

// Output i has the shape of input i, with another, unknown first dimension.
void set_other_rows(TF_ShapeInferenceContext* context, int i, TF_Status* status) {
  const ShapeHandle input;
  tf.ShapeInferenceContextGetInput(context, i, input, status);
  // Of unknown rank, or a scalar, which the kernel refuses: the output stays unknown.
  if (tf.GetCode(status) != TF_OK || !tf.ShapeInferenceContextRankKnown(context, input) ||
      tf.ShapeInferenceContextRank(context, input) == 0) {
    return;
  }
  constexpr auto kUnknown = static_cast<std::size_t>(-1);
  const ShapeHandle rows(tf.ShapeInferenceContextVectorFromSize(context, kUnknown));
  const ShapeHandle rest;
  const ShapeHandle output;
  tf.ShapeInferenceContextSubshape(context, input, 1, tf.ShapeInferenceContextRank(context, input),
                                   rest, status);
  if (tf.GetCode(status) != TF_OK) return;
  tf.ShapeInferenceContextConcatenateShapes(context, rows, rest, output, status);
  if (tf.GetCode(status) != TF_OK) return;
  tf.ShapeInferenceContextSetOutput(context, i, output, status);
}

void other_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto count = static_cast<int>(tf.ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < count && tf.GetCode(status) == TF_OK; ++i) {
    set_other_rows(context, i, status);
  }
}

void alltoall_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  set_other_rows(context, 0, status);
  if (tf.GetCode(status) != TF_OK) return;
  constexpr auto kUnknown = static_cast<std::size_t>(-1);
  const ShapeHandle splits(tf.ShapeInferenceContextVectorFromSize(context, kUnknown));
  tf.ShapeInferenceContextSetOutput(context, 1, splits, status);
}

void scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const ShapeHandle shape(tf.ShapeInferenceContextScalar(context));
  tf.ShapeInferenceContextSetOutput(context, 0, shape, status);
}

// --- Definitions ----------------------------------------------------------------------------------

// The element types that the core moves; those on which it defines at least one operator are the same.
constexpr const char* kTypes =
    "T: {uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool, complex64, "
    "complex128}";

struct OpDefinition {
  const char* name;
  std::vector<const char*> attributes;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  ShapeFunction shapes;
};

// What every collective has. `tensor_name` names it in eager mode, where nodes have no names of their
// own; `blocking` says that the calling thread, which would wait anyhow, may work meanwhile.
const std::vector<const char*> kCommon = {"ignore_name_scope: bool = false",
                                          "process_set_id: int = 0", "tensor_name: string = ''",
                                          "blocking: bool = false"};
const std::vector<const char*> kReduction = {"reduce_op: int", "prescale_factor: float",
                                             "postscale_factor: float"};
constexpr const char* kMembers = "num_tensors: int >= 1";

std::vector<const char*> attributes(std::vector<const char*> own,
                                    const std::vector<const char*>& more = {}) {
  own.insert(own.end(), more.begin(), more.end());
  own.insert(own.end(), kCommon.begin(), kCommon.end());
  return own;
}

std::vector<OpDefinition> definitions() {
  const std::vector<const char*> tensor = {"tensor: T"};
  const std::vector<const char*> tensors = {"tensors: num_tensors * T"};
  return {
      {"HorovodAllreduce", attributes({kTypes}, kReduction), tensor, {"sum: T"}, same_shapes},
      {"HorovodGroupedAllreduce",
       attributes({kTypes, kMembers}, kReduction),
       tensors,
       {"sum: num_tensors * T"},
       same_shapes},
      {"HorovodAllgather", attributes({kTypes}), tensor, {"output: T"}, other_rows},
      {"HorovodGroupedAllgather",
       attributes({kTypes, kMembers}),
       tensors,
       {"outputs: num_tensors * T"},
       other_rows},
      {"HorovodBroadcast",
       attributes({kTypes, "root_rank: int"}),
       tensor,
       {"output: T"},
       same_shapes},
      {"HorovodAlltoall",
       attributes({kTypes}),
       {"tensor: T", "splits: int32"},
       {"output: T", "received_splits: int32"},
       alltoall_shapes},
      {"HorovodReducescatter", attributes({kTypes}, kReduction), tensor, {"output: T"}, other_rows},
      {"HorovodGroupedReducescatter",
       attributes({kTypes, kMembers}, kReduction),
       tensors,
       {"outputs: num_tensors * T"},
       other_rows},
      {"HorovodJoin", {"blocking: bool = false"}, {}, {"output: int32"}, scalar},
      {"HorovodSize", {"process_set_id: int = 0"}, {}, {"size: int32"}, scalar},
      {"HorovodProcessSetIncluded", {"process_set_id: int = 0"}, {}, {"included: int32"}, scalar},
      {"HorovodLocalSize", {}, {}, {"local_size: int32"}, scalar},
      {"HorovodRank", {}, {}, {"rank: int32"}, scalar},
      {"HorovodLocalRank", {}, {}, {"local_rank: int32"}, scalar},
  };
}

}  // namespace

void register_ops(TF_Status* status) {
  for (const OpDefinition& definition : definitions()) {
    TF_OpDefinitionBuilder* builder = tf.NewOpDefinitionBuilder(definition.name);
    for (const char* attribute : definition.attributes) {
      tf.OpDefinitionBuilderAddAttr(builder, attribute);
    }
    for (const char* input : definition.inputs) tf.OpDefinitionBuilderAddInput(builder, input);
    for (const char* output : definition.outputs) tf.OpDefinitionBuilderAddOutput(builder, output);
    // Never folded, merged or left out by a graph optimizer: the others wait for it.
    tf.OpDefinitionBuilderSetIsStateful(builder, true);
    tf.OpDefinitionBuilderSetShapeInferenceFunction(builder, definition.shapes);
    tf.RegisterOpDefinition(builder, status);  // takes the builder
    if (tf.GetCode(status) != TF_OK) return;
  }
}

}  // namespace hvd::tensorflow
