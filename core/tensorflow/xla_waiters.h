// Waiters: threads that wait for other ranks in the stead of XLA's.
//
// XLA runs what comes after a call on the thread that completes it, so that thread is busy for as long as
// the rest of the program takes. Each call that waits therefore has one to itself.
#pragma once

#include <functional>

namespace hvd::tensorflow {

// Runs `task` on a thread that does nothing else meanwhile; threads are kept for the next. Throws
// std::system_error when there is no thread to be had.
void run_waiting(std::function<void()> task);

}  // namespace hvd::tensorflow
