// What a spinning thread says to its core.
#pragma once

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

}  // namespace hvd
