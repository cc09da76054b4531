// Started calls: collectives of compiled functions between their two halves, a start that never waits and a
// done that does. So a program can have many in flight at once.
//
// They work on copies. When a call of a program fails, XLA frees the program's buffers, although other
// collectives of it may be in flight and their done will never come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensorflow/xla_execution.h"

namespace hvd::tensorflow {

// The memory of a call that is not XLA's.
struct OwnedBuffers {
  OwnedBuffers(const XlaCall& call, std::span<const void* const> xla_inputs);

  std::vector<std::vector<std::byte>> memory;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<std::size_t> output_bytes;
};

class StartedCall {
 public:
  // Copies the inputs.
  StartedCall(XlaCall call, std::span<const void* const> inputs);

  const std::string& name() const { return name_; }
  XlaOutcome submit() { return execution_.submit(); }
  XlaOutcome wait() { return execution_.wait(); }
  // Waits and copies the results.
  XlaOutcome finish(std::span<void* const> outputs);
  // How many tensors.
  std::size_t size() const { return buffers_.inputs.size(); }

 private:
  std::string name_;
  OwnedBuffers buffers_;
  XlaExecution execution_;
};

// Stands for a started call in the program that started it: says which run of which program it belongs to, so
// that all can be found when one fails. 0: there is none.
using Ticket = std::int64_t;

// The first half; waits only for an abandoned call of the same name. `before`: of an earlier call of the same
// run, 0 if this is the first.
XlaOutcome start_call(XlaCall call, std::span<const void* const> inputs, Ticket before,
                      Ticket* ticket);

// The call of this ticket, which is then forgotten. None: it was abandoned.
std::shared_ptr<StartedCall> take_started(Ticket ticket);
XlaOutcome was_abandoned();

// The second half.
XlaOutcome finish_call(StartedCall& call, Ticket ticket, std::span<void* const> outputs);

// The run to which the ticket belongs has failed: its calls end without it, and their results are dropped.
// Until then nothing of the same name is started: the program that failed may be run again at once.
void abandon_run(Ticket ticket);

}  // namespace hvd::tensorflow
