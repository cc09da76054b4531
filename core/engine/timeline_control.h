// TimelineControl: callers of start_timeline and stop_timeline wait here until the log has their command.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "base/status.h"
#include "trace/timeline.h"
#include "wire/messages.h"

namespace hvd {

class TimelineControl {
 public:
  // A number for a new command, which `wait` waits for.
  std::uint64_t open();
  // Ok: applied; invalid argument: rank 0 could not do it; aborted: the job has ended.
  Status wait(std::uint64_t number);
  void done(std::uint64_t number, const std::string& error);
  // Nothing more will come.
  void end(const Status& status);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, std::optional<Status>> open_;
  std::optional<Status> ended_;
};

// Where a rank writes the timeline `path`: rank 0 there, rank 3 to "t.rank3.json" for "t.json".
std::string timeline_path_of(const std::string& path, Rank rank);

}  // namespace hvd
