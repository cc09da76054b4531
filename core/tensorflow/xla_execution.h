// One run of a custom call of a compiled function: from XLA's buffers to a call of the engine and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "c_api/horovod.h"
#include "tensorflow/xla_call.h"

namespace hvd::tensorflow {

struct XlaOutcome {
  int code = HVD_OK;
  std::string text;
};

class XlaExecution {
 public:
  // The buffers are XLA's, in the order of the call's tensors, and stay valid until the operation is done.
  // There may be more inputs: those only order the calls of a program.
  XlaExecution(XlaCall call, std::span<const void* const> inputs, std::span<void* const> outputs);
  XlaExecution(const XlaExecution&) = delete;
  XlaExecution& operator=(const XlaExecution&) = delete;

  // Never waits. `wait` must follow if it succeeded.
  XlaOutcome submit();
  // Waits in the engine, and so helps with its work.
  XlaOutcome wait();
  // Both.
  XlaOutcome run();

 private:
  hvd_call describe();
  void* memory_for(std::size_t index, std::span<const std::int64_t> shape, std::size_t bytes);
  static void* allocate(void* user, std::int32_t index, const std::int64_t* shape,
                        std::int32_t dimensions, std::size_t bytes);
  static void take_outcome(void* user, const hvd_outcome* outcome);

  XlaCall call_;
  std::vector<std::string> names_;
  std::vector<hvd_tensor> tensors_;
  std::vector<void*> outputs_;
  // Where an output goes that does not fit: the engine still owes its part to the other ranks.
  std::vector<std::unique_ptr<std::byte[]>> spare_;
  std::string misfit_;
  hvd_operation* operation_ = nullptr;
  XlaOutcome outcome_;
};

// What a call ends with whose config or buffers are not those of this build.
XlaOutcome not_understood(std::string_view config);

// Answers a question; never waits.
XlaOutcome answer_xla_question(std::string_view config, std::int32_t* answer);

}  // namespace hvd::tensorflow
