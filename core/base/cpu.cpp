#include "base/cpu.h"

#include <sched.h>

#include <cstddef>

namespace hvd {

int current_core() { return ::sched_getcpu(); }

bool move_to_core_other_than(const std::vector<int>& taken) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  cpu_set_t rest = allowed;
  for (const int core : taken) {
    if (core >= 0 && core < CPU_SETSIZE) CPU_CLR(static_cast<std::size_t>(core), &rest);
  }
  if (CPU_COUNT(&rest) == 0) return false;
  // The kernel moves a thread at once when its core is not among those it may use. That it may use the
  // others again does not move it back.
  if (::sched_setaffinity(0, sizeof rest, &rest) != 0) return false;
  ::sched_setaffinity(0, sizeof allowed, &allowed);
  return true;
}

}  // namespace hvd
