// Timeline: takes what happens from the engine's threads and writes it to a file in a thread of its own.
//
// Recording costs the caller a lock and a copy of the tensor's name. The writer looks ten times a second
// while there is something, and sleeps for ever while there is not; what it has not written when the
// process is killed (a tenth of a second at most) is lost.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "trace/array_file.h"
#include "trace/timeline_rows.h"

namespace hvd {

struct TimelineOptions {
  std::string path;
  bool mark_cycles = false;
  std::uint64_t max_bytes = 0;  // then the file is renamed to `path`.1; 0: no limit
  TraceIdentity identity;
};

class Timeline {
 public:
  ~Timeline() { stop(); }

  // Ends the one that is running, unless its path is the same: then nothing happens. Not ok: the file
  // can't be written, and nothing has changed.
  Status start(TimelineOptions options);
  // Writes what was recorded and closes the file. Harmless when not running.
  void stop();

  bool active() const { return active_.load(std::memory_order_relaxed); }
  bool marks_cycles() const { return marks_cycles_.load(std::memory_order_relaxed); }
  // Dropped when not active.
  void record(Trace trace);

 private:
  void end_writer();
  void run();
  Status write(const std::vector<Trace>& traces);
  Status rotate();

  std::mutex control_;  // start and stop
  std::atomic<bool> active_{false};
  std::atomic<bool> marks_cycles_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Trace> recorded_;
  bool stopping_ = false;

  TimelineOptions options_;
  std::unique_ptr<ArrayFile> file_;
  std::unique_ptr<TimelineRows> rows_;
  std::thread thread_;
};

}  // namespace hvd
