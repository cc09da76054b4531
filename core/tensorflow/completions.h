// Completions: runs what follows a finished collective on a thread of the plug-in's own.
//
// TensorFlow may run a whole rest of a graph in the call that says "done" (it does when its pool is set
// to run in the caller's thread). The engine's threads must not: other collectives wait for them.
#pragma once

#include <functional>

namespace hvd::tensorflow {

// Never blocks; `task` runs later, in order, on the completion thread.
void run_later(std::function<void()> task);

}  // namespace hvd::tensorflow
