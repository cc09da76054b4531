// What Python asks when the first collective is traced in a compiled function: how XLA can call it.
#include "tensorflow/xla_targets.h"

namespace hvd::tensorflow {

namespace {

struct Registration {
  bool asynchronous = false;
  std::string fault;
};

Registration register_targets() {
  const std::string ffi_fault = register_xla_ffi();
  if (ffi_fault.empty()) return {true, {}};
  const std::string blocking_fault = register_xla_blocking();
  if (blocking_fault.empty()) return {false, {}};
  return {false, ffi_fault + "; " + blocking_fault};
}

const Registration& registration() {
  static const Registration& made = *new Registration(register_targets());
  return made;
}

}  // namespace

}  // namespace hvd::tensorflow

extern "C" {

// Why compiled functions can't call the plug-in in this TensorFlow; empty if they can.
__attribute__((visibility("default"))) const char* hvd_tensorflow_xla_fault() {
  return hvd::tensorflow::registration().fault.c_str();
}

// 1: through XLA's FFI, asynchronously; 0: by custom calls that block.
__attribute__((visibility("default"))) int hvd_tensorflow_xla_is_asynchronous() {
  return hvd::tensorflow::registration().asynchronous ? 1 : 0;
}
}
