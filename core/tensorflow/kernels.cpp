// The kernels behind the ops: from TensorFlow's tensors to a call of the engine and back.
//
// A collective's kernel is asynchronous: it submits and returns, so that none of TensorFlow's pool threads
// waits. The engine writes into memory that TensorFlow allocated: nothing is copied on the way. In eager
// mode the calling thread would wait anyhow; there (`blocking`) it waits in the engine, and so may do its
// work itself.
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/completions.h"
#include "tensorflow/dtypes.h"
#include "tensorflow/plugin.h"

namespace hvd::tensorflow {

namespace {

// --- What a kernel knows of its node --------------------------------------------------------------

class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* node) : node_(node) {}

  std::int64_t integer(const char* name) {
    std::int64_t value = 0;
    tf.OpKernelConstruction_GetAttrInt64(node_, name, &value, status_);
    return value;
  }
  float number(const char* name) {
    float value = 0;
    tf.OpKernelConstruction_GetAttrFloat(node_, name, &value, status_);
    return value;
  }
  bool flag(const char* name) {
    unsigned char value = 0;
    tf.OpKernelConstruction_GetAttrBool(node_, name, &value, status_);
    return value != 0;
  }
  std::string text(const char* name) {
    std::int32_t list = 0;
    std::int32_t bytes = 0;
    tf.OpKernelConstruction_GetAttrSize(node_, name, &list, &bytes, status_);
    if (!status_.is_ok() || bytes <= 0) return {};
    std::string value(static_cast<std::size_t>(bytes), '\0');
    tf.OpKernelConstruction_GetAttrString(node_, name, value.data(), value.size(), status_);
    return value;
  }
  std::string node_name() const {
    const TF_StringView name = tf.OpKernelConstruction_GetName(node_);
    return {name.data, name.len};
  }
  // Whether all of it could be read; otherwise TensorFlow has been told.
  bool done() {
    if (!status_.is_ok()) tf.OpKernelConstruction_Failure(node_, status_);
    return status_.is_ok();
  }

 private:
  TF_OpKernelConstruction* node_;
  TfStatus status_;
};

struct Node {
  Collective kind = Collective::kAllreduce;
  bool grouped = false;
  bool blocking = false;
  std::int32_t op = static_cast<std::int32_t>(ReduceOp::kSum);
  double prescale = 1;
  double postscale = 1;
  std::int32_t root = -1;
  std::int32_t process_set = 0;
  std::string name;                  // of the operation, or of the group
  std::vector<std::string> members;  // names of the group's tensors
};

std::string operation_name(Attributes& attributes) {
  std::string name = attributes.text("tensor_name");
  if (name.empty()) name = attributes.node_name();
  if (attributes.flag("ignore_name_scope")) name = name.substr(name.rfind('/') + 1);
  return name;
}

template <Collective kKind, bool kGrouped>
void* create_collective(TF_OpKernelConstruction* construction) {
  Attributes attributes(construction);
  auto node = std::make_unique<Node>();
  node->kind = kKind;
  node->grouped = kGrouped;
  node->blocking = attributes.flag("blocking");
  if constexpr (kKind != Collective::kJoin) {
    node->process_set = static_cast<std::int32_t>(attributes.integer("process_set_id"));
    node->name = operation_name(attributes);
  }
  if constexpr (kKind == Collective::kAllreduce || kKind == Collective::kReducescatter) {
    node->op = static_cast<std::int32_t>(attributes.integer("reduce_op"));
    node->prescale = attributes.number("prescale_factor");
    node->postscale = attributes.number("postscale_factor");
  }
  if constexpr (kKind == Collective::kBroadcast) {
    node->root = static_cast<std::int32_t>(attributes.integer("root_rank"));
  }
  if constexpr (kGrouped) {
    const std::string count = std::to_string(attributes.integer("num_tensors"));
    for (std::int64_t i = 1; i <= std::stoll(count); ++i) {
      node->members.push_back(node->name + "_" + std::to_string(i) + "of" + count);
    }
  }
  return attributes.done() ? node.release() : nullptr;
}

void delete_node(void* node) { delete static_cast<Node*>(node); }

TF_Code code_of(int outcome) {
  switch (outcome) {
    case HVD_OK:
      return TF_OK;
    case HVD_INVALID_ARGUMENT:
      return TF_INVALID_ARGUMENT;
    case HVD_MISMATCH:
    case HVD_NOT_INITIALIZED:
      return TF_FAILED_PRECONDITION;
    case HVD_UNSUPPORTED:
      return TF_ABORTED;
    default:
      return TF_UNKNOWN;
  }
}

void fail(TF_OpKernelContext* context, TF_Code code, const std::string& text) {
  const TfStatus status;
  tf.SetStatus(status, code, text.c_str());
  tf.OpKernelContext_Failure(context, status);
}

// --- One execution of a collective ----------------------------------------------------------------

struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { tf.DeleteTensor(tensor); }
};
using TensorPtr = std::unique_ptr<TF_Tensor, TensorDeleter>;

// Empty tensors may have no memory; to the engine no pointer would mean something else.
std::byte kNoMemory[64];
void* memory_of(const TF_Tensor* tensor) {
  void* memory = tf.TensorData(tensor);
  return memory != nullptr ? memory : kNoMemory;
}

std::vector<std::int64_t> shape_of(const TF_Tensor* tensor) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(tf.NumDims(tensor)));
  for (std::size_t i = 0; i < shape.size(); ++i) shape[i] = tf.Dim(tensor, static_cast<int>(i));
  return shape;
}

class Execution {
 public:
  Execution(const Node& node, TF_OpKernelContext* context) : node_(node), context_(context) {}

  // Calls `done` when outputs or failure have been set, here or on another thread. `callback` is
  // TensorFlow's, which is valid only until this returns.
  static void start(const Node& node, TF_OpKernelContext* context,
                    TF_AsyncOpKernelDoneCallback* callback) {
    auto execution = std::make_unique<Execution>(node, context);
    if (!execution->take_inputs()) {
      tf.RunAsyncOpKernelDoneCallback(callback);
      return;
    }
    if (node.blocking) {
      execution->run_and_wait();
      execution.reset();
      tf.RunAsyncOpKernelDoneCallback(callback);
      return;
    }
    // The callback is the address of a std::function on the caller's stack. Its copy is what the plug-in
    // may call later (the layout of libstdc++'s has not changed since GCC 5).
    execution->done_ = *reinterpret_cast<const std::function<void()>*>(callback);
    if (execution->submit(&finish_later, nullptr)) {
      execution.release();  // finish_later owns it
    } else {
      execution.reset();
      tf.RunAsyncOpKernelDoneCallback(callback);
    }
  }

 private:
  bool take_inputs() {
    const int count = node_.kind == Collective::kAlltoall ? 1 : tf.NumInputs(context_);
    const bool same_size =
        node_.kind == Collective::kAllreduce || node_.kind == Collective::kBroadcast;
    tensors_.resize(static_cast<std::size_t>(count));
    shapes_.resize(tensors_.size());
    outputs_.resize(tensors_.size());
    for (int i = 0; i < count; ++i) {
      if (!take_input(i, same_size)) return false;
    }
    return node_.kind != Collective::kAlltoall || take_splits();
  }

  TensorPtr input(int index) {
    TF_Tensor* tensor = nullptr;
    tf.GetInput(context_, index, &tensor, status_);
    if (!status_.is_ok()) tf.OpKernelContext_Failure(context_, status_);
    return TensorPtr(tensor);
  }

  bool take_input(int index, bool same_size) {
    const auto i = static_cast<std::size_t>(index);
    TensorPtr tensor = input(index);
    if (!status_.is_ok()) return false;
    const TF_DataType type = tf.TensorType(tensor.get());
    const std::optional<DataType> dtype = from_tf(type);
    if (!dtype) {
      fail(context_, TF_INVALID_ARGUMENT, node_.name + ": this element type is not supported.");
      return false;
    }
    type_ = type;
    shapes_[i] = shape_of(tensor.get());
    hvd_tensor& described = tensors_[i];
    described.name = node_.grouped ? node_.members[i].c_str() : node_.name.c_str();
    described.shape = shapes_[i].data();
    described.dimensions = static_cast<std::int32_t>(shapes_[i].size());
    described.dtype = static_cast<std::int32_t>(*dtype);
    if (same_size) {
      // In place if nobody else holds the input, this plug-in included.
      tensor.reset();
      int forwarded = -1;
      outputs_[i].reset(tf.ForwardInputOrAllocateOutput(context_, &index, 1, index,
                                                        shapes_[i].data(), described.dimensions,
                                                        &forwarded, status_));
      if (!status_.is_ok()) {
        tf.OpKernelContext_Failure(context_, status_);
        return false;
      }
      described.output = memory_of(outputs_[i].get());
      tensor = input(index);
      if (!status_.is_ok()) return false;
    }
    described.input = memory_of(tensor.get());
    inputs_.push_back(std::move(tensor));
    return true;
  }

  bool take_splits() {
    const TensorPtr splits = input(1);
    if (!status_.is_ok()) return false;
    if (tf.NumDims(splits.get()) != 1) {
      fail(context_, TF_INVALID_ARGUMENT, "alltoall expects a 1D splits tensor");
      return false;
    }
    const auto* rows = static_cast<const std::int32_t*>(tf.TensorData(splits.get()));
    splits_.assign(rows, rows + tf.Dim(splits.get(), 0));
    return true;
  }

  bool submit(void (*done)(void*, const hvd_outcome*), hvd_operation** operation) {
    if (engine == nullptr) {
      fail(context_, TF_FAILED_PRECONDITION, "Horovod has not been initialized; use hvd.init().");
      return false;
    }
    hvd_call call{};
    call.collective = static_cast<std::int32_t>(node_.kind);
    call.op = node_.op;
    call.prescale = node_.prescale;
    call.postscale = node_.postscale;
    call.root = node_.root;
    call.process_set = node_.process_set;
    call.tensors = tensors_.data();
    call.tensor_count = static_cast<std::int32_t>(tensors_.size());
    call.group = node_.grouped ? node_.name.c_str() : nullptr;
    call.splits = splits_.empty() ? nullptr : splits_.data();
    call.split_count = static_cast<std::int32_t>(splits_.size());
    call.cacheable = 1;
    call.done = done;
    call.allocate = &allocate;
    call.user = this;
    std::array<char, 2048> error{};
    const int code = engine->submit(&call, operation, error.data(), error.size());
    if (code != HVD_OK) fail(context_, code_of(code), error.data());
    return code == HVD_OK;
  }

  void run_and_wait() {
    hvd_operation* operation = nullptr;
    if (!submit(nullptr, &operation)) return;
    engine->wait(operation, &take_outcome, this);
    finish();
  }

  // On a thread of the engine: memory only.
  static void* allocate(void* user, std::int32_t index, const std::int64_t* shape,
                        std::int32_t dimensions, std::size_t bytes) {
    auto& execution = *static_cast<Execution*>(user);
    const TfStatus status;
    TensorPtr& output = execution.outputs_[static_cast<std::size_t>(index)];
    output.reset(tf.AllocateOutput(execution.context_, index, execution.type_, shape, dimensions,
                                   bytes, status));
    return status.is_ok() ? memory_of(output.get()) : nullptr;
  }

  static void take_outcome(void* user, const hvd_outcome* outcome) {
    auto& execution = *static_cast<Execution*>(user);
    execution.code_ = outcome->code;
    execution.text_ = outcome->text;
    execution.value_ = outcome->value;
    execution.received_splits_.assign(outcome->received_splits,
                                      outcome->received_splits + outcome->received_split_count);
  }

  // On a thread of the engine, which must not run what TensorFlow does next.
  static void finish_later(void* user, const hvd_outcome* outcome) {
    take_outcome(user, outcome);
    run_later([execution = static_cast<Execution*>(user)] {
      execution->finish();
      const std::function<void()> done = std::move(execution->done_);
      delete execution;
      done();
    });
  }

  void finish() {
    if (code_ != HVD_OK) {
      fail(context_, code_of(code_), text_);
    } else if (node_.kind == Collective::kAlltoall) {
      put_integers(1, {static_cast<std::int64_t>(received_splits_.size())}, received_splits_);
    } else if (node_.kind == Collective::kJoin) {
      put_integers(0, {}, {value_});
    }
  }

  void put_integers(int index, const std::vector<std::int64_t>& shape,
                    const std::vector<std::int64_t>& values) {
    const TensorPtr output(tf.AllocateOutput(context_, index, TF_INT32, shape.data(),
                                             static_cast<int>(shape.size()),
                                             values.size() * sizeof(std::int32_t), status_));
    if (!status_.is_ok()) {
      tf.OpKernelContext_Failure(context_, status_);
      return;
    }
    auto* numbers = static_cast<std::int32_t*>(tf.TensorData(output.get()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      numbers[i] = static_cast<std::int32_t>(values[i]);
    }
  }

  const Node& node_;  // TensorFlow keeps the kernel while it runs
  TF_OpKernelContext* context_;
  TfStatus status_;
  TF_DataType type_ = TF_FLOAT;
  std::vector<TensorPtr> inputs_;
  std::vector<TensorPtr> outputs_;
  std::vector<std::vector<std::int64_t>> shapes_;
  std::vector<hvd_tensor> tensors_;
  std::vector<std::int64_t> splits_;
  std::function<void()> done_;
  int code_ = HVD_OK;
  std::string text_;
  std::int64_t value_ = 0;
  std::vector<std::int64_t> received_splits_;
};

void run_collective(void* node, TF_OpKernelContext* context,
                    TF_AsyncOpKernelDoneCallback* callback) {
  Execution::start(*static_cast<const Node*>(node), context, callback);
}

// --- Who am I, at run time ------------------------------------------------------------------------

// A member's number within a set, or what hvd_api.identity answers.
struct Question {
  int what = HVD_RANK;
  bool of_set = false;
  bool included = false;
  std::int32_t process_set = 0;
};

template <int kWhat>
void* create_identity(TF_OpKernelConstruction*) {
  return new Question{kWhat, false, false, 0};
}

template <bool kIncluded>
void* create_set_question(TF_OpKernelConstruction* construction) {
  Attributes attributes(construction);
  const auto id = static_cast<std::int32_t>(attributes.integer("process_set_id"));
  return attributes.done() ? new Question{HVD_SIZE, true, kIncluded, id} : nullptr;
}

void delete_question(void* question) { delete static_cast<Question*>(question); }

void answer(void* asked, TF_OpKernelContext* context) {
  const auto& question = *static_cast<const Question*>(asked);
  int value = engine == nullptr ? -1 : engine->identity(question.what);
  if (value < 0) {
    fail(context, TF_FAILED_PRECONDITION, "Horovod has not been initialized; use hvd.init().");
    return;
  }
  if (question.of_set) {
    std::int32_t set_rank = -1;
    std::int32_t size = 0;
    const int code = engine->process_set(question.process_set, &set_rank, &size);
    if (code != HVD_OK) {
      fail(context, code_of(code), "Process set does not exist or has not been registered.");
      return;
    }
    value = question.included ? static_cast<int>(set_rank >= 0) : size;
  }
  const TfStatus status;
  const TensorPtr output(
      tf.AllocateOutput(context, 0, TF_INT32, nullptr, 0, sizeof(std::int32_t), status));
  if (status.is_ok()) {
    *static_cast<std::int32_t*>(tf.TensorData(output.get())) = value;
  } else {
    tf.OpKernelContext_Failure(context, status);
  }
}

// --- Registration ---------------------------------------------------------------------------------

using Create = void* (*)(TF_OpKernelConstruction*);

// Tensors of a GPU are moved to host memory by TensorFlow: there are only kernels for the CPU.
void add_collective(const char* op, Create create, TF_Status* status) {
  if (tf.GetCode(status) != TF_OK) return;
  tf.RegisterKernelBuilder(
      op, tf.NewAsyncKernelBuilder(op, "CPU", create, run_collective, delete_node), status);
}

void add_question(const char* op, Create create, TF_Status* status) {
  if (tf.GetCode(status) != TF_OK) return;
  tf.RegisterKernelBuilder(op, tf.NewKernelBuilder(op, "CPU", create, answer, delete_question),
                           status);
}

}  // namespace

void register_kernels(TF_Status* status) {
  using enum Collective;
  add_collective("HorovodAllreduce", create_collective<kAllreduce, false>, status);
  add_collective("HorovodGroupedAllreduce", create_collective<kAllreduce, true>, status);
  add_collective("HorovodAllgather", create_collective<kAllgather, false>, status);
  add_collective("HorovodGroupedAllgather", create_collective<kAllgather, true>, status);
  add_collective("HorovodBroadcast", create_collective<kBroadcast, false>, status);
  add_collective("HorovodAlltoall", create_collective<kAlltoall, false>, status);
  add_collective("HorovodReducescatter", create_collective<kReducescatter, false>, status);
  add_collective("HorovodGroupedReducescatter", create_collective<kReducescatter, true>, status);
  add_collective("HorovodJoin", create_collective<kJoin, false>, status);
  add_question("HorovodSize", create_set_question<false>, status);
  add_question("HorovodProcessSetIncluded", create_set_question<true>, status);
  add_question("HorovodRank", create_identity<HVD_RANK>, status);
  add_question("HorovodLocalRank", create_identity<HVD_LOCAL_RANK>, status);
  add_question("HorovodLocalSize", create_identity<HVD_LOCAL_SIZE>, status);
}

}  // namespace hvd::tensorflow
