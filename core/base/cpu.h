// What a thread says to its core, and which one that is.
#pragma once

#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hvd {

inline void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// The core that this thread runs on just now; -1 if the kernel doesn't tell.
int current_core();

// Moves this thread to a core that it may use and that is not in `taken`; it may go anywhere afterwards.
// False: there is none, or the kernel forbids it.
bool move_to_core_other_than(const std::vector<int>& taken);

}  // namespace hvd
