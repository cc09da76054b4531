// Custom calls through XLA's FFI, where TensorFlow exports it: no thread of XLA waits for other ranks.
//
// A handler leaves a future and hands its operation to a thread of the plug-in, which submits it, waits,
// and completes the future. Meanwhile XLA goes on with what does not depend on the result, and it keeps
// the buffers. What comes after the call runs on the thread that completes it. Small collectives come in two
// halves: the start submits at once, on XLA's thread.
#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "base/float_mode.h"
#include "tensorflow/plugin.h"
#include "tensorflow/xla_execution.h"
#include "tensorflow/xla_ffi_api.h"
#include "tensorflow/xla_started.h"
#include "tensorflow/xla_targets.h"
#include "tensorflow/xla_waiters.h"

namespace hvd::tensorflow {

namespace {

constexpr std::int32_t kMajor = 0;
constexpr std::int32_t kMinor = 2;  // the newest whose layouts were looked at

std::int32_t offered_minor = 0;  // by the TensorFlow that is loaded

ffi::ErrorCode code_of(int outcome) {
  switch (outcome) {
    case HVD_INVALID_ARGUMENT:
      return ffi::ErrorCode::kInvalidArgument;
    case HVD_MISMATCH:
    case HVD_NOT_INITIALIZED:
      return ffi::ErrorCode::kFailedPrecondition;
    case HVD_UNSUPPORTED:
      return ffi::ErrorCode::kAborted;
    default:
      return ffi::ErrorCode::kUnknown;
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
  ffi::Metadata& metadata = *reinterpret_cast<const ffi::MetadataExtension*>(extension)->metadata;
  metadata.version.major = kMajor;
  metadata.version.minor = std::min(kMinor, offered_minor);
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

void complete(const ffi::Api& api, ffi::Future* future, const XlaOutcome& outcome) {
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

// Ends the call with what `work` returns, which is run on a thread that may wait.
ffi::Error* end_later(ffi::CallFrame& frame, std::function<XlaOutcome()> work) {
  const ffi::Api& api = *frame.api;
  auto created = ffi::make_arguments<ffi::FutureCreate>();
  if (ffi::Error* error = api.future_create(&created)) return error;
  frame.future = created.future;
  try {
    run_waiting([&api, work = std::move(work), future = created.future, mode = float_mode()] {
      const XlaOutcome outcome = work();
      const FloatModeScope as_in_xla(&mode);
      complete(api, future, outcome);
    });
  } catch (const std::system_error& error) {
    complete(api, created.future,
             {HVD_ABORTED, std::string("no thread to wait on: ") + error.what()});
  }
  return nullptr;
}

// The call that the frame describes, if it has arguments and results for it.
std::optional<XlaCall> call_of(const ffi::CallFrame& frame, std::size_t results_per_tensor) {
  std::optional<XlaCall> call = parse_xla_call(config_of(frame));
  if (!call) return std::nullopt;
  const std::int64_t count = static_cast<std::int64_t>(call->tensors.size());
  const bool fits = frame.arguments.count >= count && call->ticket_at < frame.arguments.count &&
                    frame.results.count >= count * static_cast<std::int64_t>(results_per_tensor);
  return fits ? std::move(call) : std::nullopt;
}

// Of an earlier call of this run of the program; 0 if there is none.
Ticket ticket_before(const ffi::CallFrame& frame, const XlaCall& call) {
  if (call.ticket_at < 0) return 0;
  return *static_cast<const Ticket*>(frame.arguments.items[call.ticket_at]->data);
}

ffi::Error* collective(ffi::CallFrame* frame) {
  if (answer_metadata(*frame)) return nullptr;
  std::optional<XlaCall> call = call_of(*frame, 1);
  if (!call) return error_of(*frame->api, not_understood(config_of(*frame)));
  const Ticket before = ticket_before(*frame, *call);
  const std::vector<void*> inputs = memory_of(frame->arguments);
  const auto execution =
      std::make_shared<XlaExecution>(*std::move(call), inputs, memory_of(frame->results));
  return end_later(*frame, [execution, before] {
    XlaOutcome outcome = execution->run();
    if (outcome.code != HVD_OK) abandon_run(before);
    return outcome;
  });
}

ffi::Error* start(ffi::CallFrame* frame) {
  if (answer_metadata(*frame)) return nullptr;
  std::optional<XlaCall> call = call_of(*frame, 0);
  if (!call) return error_of(*frame->api, not_understood(config_of(*frame)));
  const Ticket before = ticket_before(*frame, *call);
  const std::vector<void*> inputs = memory_of(frame->arguments);
  return error_of(*frame->api, start_call(*std::move(call), inputs, before,
                                          static_cast<Ticket*>(frame->results.items[0]->data)));
}

ffi::Error* done(ffi::CallFrame* frame) {
  if (answer_metadata(*frame)) return nullptr;
  const Ticket ticket = *static_cast<const Ticket*>(frame->arguments.items[0]->data);
  const std::shared_ptr<StartedCall> started = take_started(ticket);
  if (started == nullptr) return error_of(*frame->api, was_abandoned());
  return end_later(*frame, [started, ticket, outputs = memory_of(frame->results)] {
    return finish_call(*started, ticket, outputs);
  });
}

ffi::Error* question(ffi::CallFrame* frame) {
  if (answer_metadata(*frame)) return nullptr;
  return error_of(*frame->api,
                  answer_xla_question(config_of(*frame),
                                      static_cast<std::int32_t*>(frame->results.items[0]->data)));
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
           std::to_string(api.version.minor) + " with a table of " +
           std::to_string(api.header.struct_size) + " bytes, which is not known here";
  }
  offered_minor = api.version.minor;
  std::string fault = register_handler(api, kXlaCollective, collective);
  if (fault.empty()) fault = register_handler(api, kXlaStart, start);
  if (fault.empty()) fault = register_handler(api, kXlaDone, done);
  if (fault.empty()) fault = register_handler(api, kXlaQuestion, question);
  return fault;
}

}  // namespace hvd::tensorflow
