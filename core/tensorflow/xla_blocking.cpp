// Custom calls as every XLA has them: a function that returns when the result is there.
//
// XLA for CPUs without the FFI runs a program's calls one after the other on a thread of the program's own,
// so one that waits holds up nobody else, and waiting in the engine it does the engine's work.
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tensorflow/tf_api.h"
#include "tensorflow/xla_execution.h"
#include "tensorflow/xla_started.h"
#include "tensorflow/xla_targets.h"

namespace hvd::tensorflow {

namespace {

// XLA's XlaCustomCallStatus: a text means failure. TensorFlow exports its reader and not its writer.
using Status = std::optional<std::string>;
using ReadStatus = std::optional<std::string_view> (*)(const Status*);

// Whether the reader finds in a status what is written here.
bool knows_layout(ReadStatus read) {
  const Status good;
  const Status bad = "a text that is too long to be kept within the string object";
  return !read(&good).has_value() && read(&bad) == std::string_view(*bad);
}

// The memory of `count` results: `output` is that of the only one, or the list of several.
std::span<void* const> results(void*& output, std::size_t count) {
  return {count > 1 ? static_cast<void**>(output) : &output, count};
}

Ticket ticket_before(const XlaCall& call, const void** inputs) {
  return call.ticket_at < 0 ? 0 : *static_cast<const Ticket*>(inputs[call.ticket_at]);
}

void collective(void* output, const void** inputs, const char* config, std::size_t config_bytes,
                Status* status) {
  const std::string_view text(config, config_bytes);
  std::optional<XlaCall> call = parse_xla_call(text);
  XlaOutcome outcome = not_understood(text);
  if (call) {
    const std::size_t count = call->tensors.size();
    const Ticket before = ticket_before(*call, inputs);
    outcome = XlaExecution(*std::move(call), {inputs, count}, results(output, count)).run();
    if (outcome.code != HVD_OK) abandon_run(before);
  }
  if (outcome.code != HVD_OK) *status = std::move(outcome.text);
}

void start(void* output, const void** inputs, const char* config, std::size_t config_bytes,
           Status* status) {
  const std::string_view text(config, config_bytes);
  std::optional<XlaCall> call = parse_xla_call(text);
  XlaOutcome outcome = not_understood(text);
  if (call) {
    const std::size_t count = call->tensors.size();
    const Ticket before = ticket_before(*call, inputs);
    outcome = start_call(*std::move(call), {inputs, count}, before, static_cast<Ticket*>(output));
  }
  if (outcome.code != HVD_OK) *status = std::move(outcome.text);
}

void done(void* output, const void** inputs, const char*, std::size_t, Status* status) {
  const Ticket ticket = *static_cast<const Ticket*>(inputs[0]);
  const std::shared_ptr<StartedCall> started = take_started(ticket);
  XlaOutcome outcome = was_abandoned();
  if (started != nullptr) {
    outcome = finish_call(*started, ticket, results(output, started->size()));
  }
  if (outcome.code != HVD_OK) *status = std::move(outcome.text);
}

void question(void* output, const void**, const char* config, std::size_t config_bytes,
              Status* status) {
  XlaOutcome outcome =
      answer_xla_question({config, config_bytes}, static_cast<std::int32_t*>(output));
  if (outcome.code != HVD_OK) *status = std::move(outcome.text);
}

struct Registry;
using GlobalRegistry = Registry* (*)();
using Register = void (*)(Registry*, const std::string& name, void* function,
                          const std::string& platform);

}  // namespace

std::string register_xla_blocking() {
  const auto global =
      reinterpret_cast<GlobalRegistry>(find_symbol("_ZN3xla24CustomCallTargetRegistry6GlobalEv"));
  const auto add = reinterpret_cast<Register>(
      find_symbol("_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_string"
                  "IcSt11char_traitsIcESaIcEEEPvS8_"));
  const auto read = reinterpret_cast<ReadStatus>(
      find_symbol("_ZN3xla26CustomCallStatusGetMessageEPK20XlaCustomCallStatus_"));
  if (global == nullptr || add == nullptr || read == nullptr) {
    return "TensorFlow does not export XLA's registry of custom calls";
  }
  if (!knows_layout(read)) return "the status of XLA's custom calls has another layout";
  add(global(), kXlaCollective, reinterpret_cast<void*>(&collective), "Host");
  add(global(), kXlaStart, reinterpret_cast<void*>(&start), "Host");
  add(global(), kXlaDone, reinterpret_cast<void*>(&done), "Host");
  add(global(), kXlaQuestion, reinterpret_cast<void*>(&question), "Host");
  return {};
}

}  // namespace hvd::tensorflow
