#include "c_api/process_engine.h"

#include <pthread.h>

#include <mutex>
#include <utility>

namespace hvd {

namespace {

struct Slot {
  std::mutex mutex;
  std::shared_ptr<Engine> engine;
};

// Never destroyed: threads of the program may outlive static destructors.
Slot& slot() {
  static Slot& instance = *new Slot;
  return instance;
}

// The child of a fork has none of the engine's threads: it must not use the connections nor keep them
// open, or peers could not see this process die.
void forget_engine_in_child() {
  std::shared_ptr<Engine> engine = std::exchange(slot().engine, nullptr);
  slot().mutex.unlock();
  if (!engine) return;
  engine->close_in_child();
  new std::shared_ptr<Engine>(std::move(engine));  // leaked: its threads can't be joined here
}

// Whoever holds the mutex elsewhere, the child finds it free.
void watch_forks() {
  static const int registered = ::pthread_atfork(
      [] { slot().mutex.lock(); }, [] { slot().mutex.unlock(); }, forget_engine_in_child);
  (void)registered;
}

}  // namespace

std::shared_ptr<Engine> process_engine() {
  const std::lock_guard lock(slot().mutex);
  return slot().engine;
}

void set_process_engine(std::shared_ptr<Engine> engine) {
  watch_forks();
  const std::lock_guard lock(slot().mutex);
  slot().engine = std::move(engine);
}
}  // namespace hvd
