// The one engine of this process: the only global of the core.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace hvd {

// nullptr while Horovod is not initialised, and in the child of a fork. Safe from any thread.
std::shared_ptr<Engine> process_engine();
void set_process_engine(std::shared_ptr<Engine> engine);

}  // namespace hvd
