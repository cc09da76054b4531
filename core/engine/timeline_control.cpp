#include "engine/timeline_control.h"

namespace hvd {

std::uint64_t TimelineControl::open() {
  const std::lock_guard lock(mutex_);
  open_[next_] = std::nullopt;
  return next_++;
}

Status TimelineControl::wait(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || open_[number]; });
  const Status status = open_[number] ? *open_[number] : *ended_;
  open_.erase(number);
  return status;
}

void TimelineControl::done(std::uint64_t number, const std::string& error) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(number);
  if (found == open_.end()) return;
  found->second = error.empty()
                      ? Status::ok()
                      : Status::invalid_argument("The timeline can't begin on rank 0: " + error);
  changed_.notify_all();
}

void TimelineControl::end(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (!ended_) ended_ = status;
  changed_.notify_all();
}

std::string timeline_path_of(const std::string& path, Rank rank) {
  if (rank == 0) return path;
  const std::size_t name = path.find_last_of('/') + 1;  // 0 when there is no slash
  std::size_t suffix = path.find_last_of('.');
  if (suffix == std::string::npos || suffix <= name) suffix = path.size();
  return path.substr(0, suffix) + ".rank" + std::to_string(rank) + path.substr(suffix);
}

}  // namespace hvd
