#include "tensorflow/xla_execution.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "tensorflow/plugin.h"

namespace hvd::tensorflow {

namespace {

constexpr const char* kNotInitialized = "Horovod has not been initialized; use hvd.init().";

// Empty buffers may have no memory; to the engine no pointer would mean something else.
std::byte kNoMemory[64];
template <typename Pointer>
Pointer memory_or_stub(Pointer memory) {
  return memory != nullptr ? memory : kNoMemory;
}

std::string text_of(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t dimension : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(dimension);
  }
  return text + "]";
}

}  // namespace

XlaExecution::XlaExecution(XlaCall call, std::span<const void* const> inputs,
                           std::span<void* const> outputs)
    : call_(std::move(call)), outputs_(outputs.begin(), outputs.end()) {
  const std::size_t count = call_.tensors.size();
  const std::string of = "of" + std::to_string(count);
  for (std::size_t i = 0; i < count; ++i) {
    names_.push_back(call_.grouped ? call_.name + "_" + std::to_string(i + 1) + of : call_.name);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const XlaTensor& tensor = call_.tensors[i];
    hvd_tensor described{};
    described.name = names_[i].c_str();
    described.input = memory_or_stub(inputs[i]);
    described.output = keeps_size(call_.kind) ? memory_or_stub(outputs_[i]) : nullptr;
    described.shape = tensor.shape.data();
    described.dimensions = static_cast<std::int32_t>(tensor.shape.size());
    described.dtype = static_cast<std::int32_t>(tensor.dtype);
    tensors_.push_back(described);
  }
}

hvd_call XlaExecution::describe() {
  hvd_call call{};
  call.collective = static_cast<std::int32_t>(call_.kind);
  call.op = call_.op;
  call.prescale = call_.prescale;
  call.postscale = call_.postscale;
  call.root = call_.root;
  call.process_set = call_.process_set;
  call.tensors = tensors_.data();
  call.tensor_count = static_cast<std::int32_t>(tensors_.size());
  call.group = call_.grouped ? call_.name.c_str() : nullptr;
  call.cacheable = 1;
  call.allocate = &allocate;
  call.user = this;
  return call;
}

XlaOutcome XlaExecution::run() {
  XlaOutcome submitted = submit();
  return submitted.code == HVD_OK ? wait() : submitted;
}

XlaOutcome XlaExecution::submit() {
  if (engine == nullptr) return {HVD_NOT_INITIALIZED, kNotInitialized};
  const hvd_call call = describe();
  std::array<char, 2048> error{};
  const int code = engine->submit(&call, &operation_, error.data(), error.size());
  return code == HVD_OK ? XlaOutcome{} : XlaOutcome{code, error.data()};
}

XlaOutcome XlaExecution::wait() {
  engine->wait(operation_, &take_outcome, this);
  if (outcome_.code == HVD_OK && !misfit_.empty()) return {HVD_MISMATCH, misfit_};
  return outcome_;
}

void XlaExecution::take_outcome(void* user, const hvd_outcome* outcome) {
  static_cast<XlaExecution*>(user)->outcome_ = {outcome->code, outcome->text};
}

// On a thread of the engine.
void* XlaExecution::allocate(void* user, std::int32_t index, const std::int64_t* shape,
                             std::int32_t dimensions, std::size_t bytes) {
  return static_cast<XlaExecution*>(user)->memory_for(
      static_cast<std::size_t>(index), std::span(shape, static_cast<std::size_t>(dimensions)),
      bytes);
}

void* XlaExecution::memory_for(std::size_t index, std::span<const std::int64_t> shape,
                               std::size_t bytes) {
  const XlaTensor& tensor = call_.tensors[index];
  const Shape expected = output_shape(tensor);
  if (std::ranges::equal(shape, expected)) return memory_or_stub(outputs_[index]);
  misfit_ =
      names_[index] + ": this function was compiled for an output of shape " + text_of(expected) +
      ", but the tensors of all ranks make one of shape " + text_of(shape) +
      ". In a compiled function the first dimension of what is gathered or exchanged must be equal "
      "on all ranks: pad the tensors, or use jit_compile=False.";
  spare_.push_back(std::make_unique<std::byte[]>(bytes));
  return memory_or_stub(spare_.back().get());
}

XlaOutcome not_understood(std::string_view config) {
  return {HVD_INVALID_ARGUMENT,
          "horovod.tensorflow.xla and its plug-in are of different builds: this call is not "
          "understood: " +
              std::string(config)};
}

XlaOutcome answer_xla_question(std::string_view config, std::int32_t* answer) {
  const std::optional<XlaQuestion> question = parse_xla_question(config);
  if (!question) return not_understood(config);
  if (engine == nullptr) return {HVD_NOT_INITIALIZED, kNotInitialized};
  if (question->kind == XlaQuestion::Kind::kIdentity) {
    *answer = engine->identity(question->what);
    if (*answer < 0) return {HVD_NOT_INITIALIZED, kNotInitialized};
    return {};
  }
  std::int32_t set_rank = -1;
  std::int32_t size = 0;
  const int code = engine->process_set(question->process_set, &set_rank, &size);
  if (code == HVD_NOT_INITIALIZED) return {code, kNotInitialized};
  if (code != HVD_OK) return {code, "Process set does not exist or has not been registered."};
  switch (question->kind) {
    case XlaQuestion::Kind::kSetRank:
      *answer = set_rank;
      break;
    case XlaQuestion::Kind::kIncluded:
      *answer = set_rank >= 0 ? 1 : 0;
      break;
    default:
      *answer = size;
      break;
  }
  return {};
}

}  // namespace hvd::tensorflow
