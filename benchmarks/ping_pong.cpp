// Prints the median round trip, in nanoseconds, of one cache line between cores 0 and 1.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr int kBatches = 200;
constexpr std::uint32_t kTurns = 500;

struct alignas(128) Line {
  std::atomic<std::uint32_t> turn{0};
};

bool run_on_core(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  return pthread_setaffinity_np(pthread_self(), sizeof cores, &cores) == 0;
}

}  // namespace

int main() {
  Line line;
  if (!run_on_core(0)) {
    std::fputs("this process may not run on core 0\n", stderr);
    return 1;
  }
  std::atomic<int> other_is_placed{0};
  std::jthread other([&] {
    other_is_placed = run_on_core(1) ? 1 : -1;
    if (other_is_placed < 0) return;
    for (std::uint32_t turn = 0; turn < kBatches * kTurns; ++turn) {
      while (line.turn.load(std::memory_order_acquire) != 2 * turn + 1) {
      }
      line.turn.store(2 * turn + 2, std::memory_order_release);
    }
  });
  while (other_is_placed == 0) std::this_thread::yield();
  if (other_is_placed < 0) {
    std::fputs("this process may not run on core 1\n", stderr);
    return 1;
  }

  std::vector<double> nanoseconds;
  std::uint32_t turn = 0;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (std::uint32_t i = 0; i < kTurns; ++i, ++turn) {
      line.turn.store(2 * turn + 1, std::memory_order_release);
      while (line.turn.load(std::memory_order_acquire) != 2 * turn + 2) {
      }
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    nanoseconds.push_back(took.count() / kTurns);
  }
  std::nth_element(nanoseconds.begin(), nanoseconds.begin() + kBatches / 2, nanoseconds.end());
  std::printf("%.1f\n", nanoseconds[kBatches / 2]);
}
