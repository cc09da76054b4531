// Custom calls through XLA's FFI, where TensorFlow exports it: no thread of XLA waits for other ranks.
//
// A handler submits to the engine and leaves a future. XLA goes on with what does not depend on the
// result, keeps the buffers until the future is complete, and on completion runs what comes next; that
// happens on the completion thread, never on one of the engine's.
#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "tensorflow/completions.h"
#include "tensorflow/plugin.h"
#include "tensorflow/xla_execution.h"
#include "tensorflow/xla_ffi_api.h"
#include "tensorflow/xla_targets.h"

namespace hvd::tensorflow {

namespace {

constexpr std::int32_t kMajor = 0;
constexpr std::int32_t kMinor = 2;  // the newest whose layouts were looked at

ffi::ErrorCode code_of(int outcome) {
  switch (outcome) {
    case HVD_INVALID_ARGUMENT: return ffi::ErrorCode::kInvalidArgument;
    case HVD_MISMATCH:
    case HVD_NOT_INITIALIZED: return ffi::ErrorCode::kFailedPrecondition;
    case HVD_UNSUPPORTED: return ffi::ErrorCode::kAborted;
    default: return ffi::ErrorCode::kUnknown;
  }
}

ffi::Error* error_of(const ffi::Api& api, const XlaOutcome& outcome) {
  if (outcome.code == HVD_OK) return nullptr;
  auto arguments = ffi::make_arguments<ffi::ErrorCreate>();
  arguments.message = outcome.text.c_str();
  arguments.code = code_of(outcome.code);
  return api.error_create(&arguments);
}

void drop(const ffi::Api& api, ffi::Error* error) {
  if (error == nullptr) return;
  auto arguments = ffi::make_arguments<ffi::ErrorDestroy>();
  arguments.error = error;
  api.error_destroy(&arguments);
}

// Whether this was XLA's question what the handler was written for.
bool answer_metadata(const ffi::CallFrame& frame) {
  const ffi::Extension* extension = frame.header.extensions;
  if (extension == nullptr || extension->type != ffi::kMetadataExtension) return false;
  ffi::Metadata& metadata =
      *reinterpret_cast<const ffi::MetadataExtension*>(extension)->metadata;
  metadata.version.major = kMajor;
  metadata.version.minor = std::min(kMinor, frame.api->version.minor);
  metadata.traits = 0;
  return true;
}

// The text of the only attribute; empty if it is something else.
std::string_view config_of(const ffi::CallFrame& frame) {
  if (frame.attributes.count != 1 || frame.attributes.types[0] != ffi::kTextAttribute) return {};
  const auto& text = *static_cast<const ffi::Text*>(frame.attributes.values[0]);
  return {text.data, text.size};
}

std::vector<void*> memory_of(const ffi::Buffers& buffers) {
  std::vector<void*> memory;
  for (ffi::Buffer* buffer : std::span(buffers.items, static_cast<std::size_t>(buffers.count))) {
    memory.push_back(buffer->data);
  }
  return memory;
}

// A run whose end completes a future of XLA's. It owns itself from a successful start on.
class FutureExecution : private XlaExecution {
 public:
  FutureExecution(const ffi::Api& api, XlaCall call, std::span<const void* const> inputs,
                  std::span<void* const> outputs)
      : XlaExecution(std::move(call), inputs, outputs), api_(api) {}

  static ffi::Error* start(std::unique_ptr<FutureExecution> execution, ffi::Future** future) {
    const ffi::Api& api = execution->api_;
    auto created = ffi::make_arguments<ffi::FutureCreate>();
    if (ffi::Error* error = api.future_create(&created)) return error;
    execution->future_ = created.future;
    const XlaOutcome outcome = execution->submit(&FutureExecution::ended, nullptr);
    if (outcome.code == HVD_OK) {
      // `ended` may have come already: nothing of the object is touched from here.
      static_cast<void>(execution.release());
    } else {
      complete(api, created.future, outcome);
    }
    *future = created.future;
    return nullptr;
  }

 private:
  // On a thread of the engine, which must not run what XLA does next.
  static void ended(void* user, const hvd_outcome* outcome) {
    auto* execution = static_cast<FutureExecution*>(static_cast<XlaExecution*>(user));
    run_later([execution, result = execution->outcome_of(*outcome)] {
      const ffi::Api& api = execution->api_;
      ffi::Future* const future = execution->future_;
      delete execution;
      complete(api, future, result);
    });
  }

  static void complete(const ffi::Api& api, ffi::Future* future, const XlaOutcome& outcome) {
    if (ffi::Error* error = error_of(api, outcome)) {
      auto arguments = ffi::make_arguments<ffi::FutureSetError>();
      arguments.future = future;
      arguments.error = error;
      drop(api, api.future_set_error(&arguments));
    } else {
      auto arguments = ffi::make_arguments<ffi::FutureSetAvailable>();
      arguments.future = future;
      drop(api, api.future_set_available(&arguments));
    }
  }

  const ffi::Api& api_;
  ffi::Future* future_ = nullptr;
};

ffi::Error* collective(ffi::CallFrame* frame) {
  if (answer_metadata(*frame)) return nullptr;
  const std::string_view config = config_of(*frame);
  std::optional<XlaCall> call = parse_xla_call(config);
  const std::vector<void*> inputs = memory_of(frame->arguments);
  const std::vector<void*> outputs = memory_of(frame->results);
  if (!call || inputs.size() < call->tensors.size() || outputs.size() < call->tensors.size()) {
    return error_of(*frame->api, not_understood(config));
  }
  return FutureExecution::start(
      std::make_unique<FutureExecution>(*frame->api, *std::move(call), inputs, outputs),
      &frame->future);
}

ffi::Error* question(ffi::CallFrame* frame) {
  if (answer_metadata(*frame)) return nullptr;
  return error_of(*frame->api,
                  answer_xla_question(config_of(*frame), static_cast<std::int32_t*>(
                                                             frame->results.items[0]->data)));
}

std::string register_handler(const ffi::Api& api, const char* name, ffi::Handler* handler) {
  auto arguments = ffi::make_arguments<ffi::HandlerRegister>();
  arguments.name = {name, std::char_traits<char>::length(name)};
  arguments.platform = {"Host", 4};
  arguments.execute = handler;
  ffi::Error* const error = api.handler_register(&arguments);
  if (error == nullptr) return {};
  auto message = ffi::make_arguments<ffi::ErrorMessage>();
  message.error = error;
  api.error_message(&message);
  std::string text = std::string("XLA refused the handler ") + name + ": " + message.message;
  drop(api, error);
  return text;
}

}  // namespace

std::string register_xla_ffi() {
  const auto get_api =
      reinterpret_cast<const ffi::Api* (*)()>(find_symbol("_ZN3xla3ffi12GetXlaFfiApiEv"));
  if (get_api == nullptr) return "TensorFlow does not export XLA's FFI";
  const ffi::Api& api = *get_api();
  if (api.version.major != kMajor || api.header.struct_size < sizeof(ffi::Api)) {
    return "XLA's FFI is of version " + std::to_string(api.version.major) + "." +
           std::to_string(api.version.minor) + ", which has no futures";
  }
  std::string fault = register_handler(api, kXlaCollective, collective);
  if (fault.empty()) fault = register_handler(api, kXlaQuestion, question);
  return fault;
}

}  // namespace hvd::tensorflow
