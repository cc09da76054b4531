// The table of functions behind horovod.h.
#pragma once

#include "c_api/horovod.h"

namespace hvd {

const hvd_api* c_api();

}  // namespace hvd
