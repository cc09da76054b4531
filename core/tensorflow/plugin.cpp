// What happens when TensorFlow loads the plug-in, and what Python calls in it (through ctypes).
#include "tensorflow/plugin.h"

#include <string>

namespace hvd::tensorflow {

const hvd_api* engine = nullptr;

namespace {

// Why the plug-in does not work with the TensorFlow that is loaded; empty if it does.
std::string& fault() {
  static std::string& text = *new std::string;
  return text;
}

// `tf.load_op_library` notes which ops are registered while it loads a library.
const bool registered = [] {
  const std::string missing = find_api();
  if (!missing.empty()) {
    fault() = "it does not export " + missing;
    return false;
  }
  const TfStatus status;
  register_ops(status);
  if (status.is_ok()) register_kernels(status);
  if (!status.is_ok()) fault() = status.text();
  return status.is_ok();
}();

}  // namespace

}  // namespace hvd::tensorflow

extern "C" {

__attribute__((visibility("default"))) const char* hvd_tensorflow_fault() {
  return hvd::tensorflow::fault().c_str();
}

// Returns 0 when the table is of another version than the plug-in was built with.
__attribute__((visibility("default"))) int hvd_tensorflow_attach(const hvd_api* api) {
  if (api->version != HVD_API_VERSION) return 0;
  hvd::tensorflow::engine = api;
  return 1;
}
}
