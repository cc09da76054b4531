// The plug-in: what its files share.
#pragma once

#include "c_api/horovod.h"
#include "tensorflow/tf_api.h"

namespace hvd::tensorflow {

// The engine's functions; set by horovod.tensorflow before any op can run.
extern const hvd_api* engine;

void register_ops(TF_Status* status);
void register_kernels(TF_Status* status);

}  // namespace hvd::tensorflow
