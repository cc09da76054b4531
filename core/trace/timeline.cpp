#include "trace/timeline.h"

#include <pthread.h>

#include <chrono>
#include <cstdio>

#include "base/log.h"
#include "base/signals.h"

namespace hvd {

namespace {

constexpr std::chrono::milliseconds kGather{100};
constexpr std::size_t kMany = 50000;  // recorded: do not wait any longer

std::int64_t epoch_micros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Status Timeline::start(TimelineOptions options) {
  const std::lock_guard control(control_);
  if (thread_.joinable() && options_.path == options.path && active()) return Status::ok();
  std::unique_ptr<ArrayFile> file;
  if (Status status = ArrayFile::create(options.path, file); !status.is_ok()) return status;
  auto rows = std::make_unique<TimelineRows>(options.identity);
  std::string head;
  rows->begin_file(head, std::chrono::steady_clock::now(), epoch_micros());
  if (Status status = file->append(head); !status.is_ok()) return status;
  end_writer();
  options_ = std::move(options);
  // What is left of an earlier recording does not belong before this one.
  std::remove((options_.path + ".1").c_str());
  file_ = std::move(file);
  rows_ = std::move(rows);
  recorded_.clear();
  stopping_ = false;
  marks_cycles_ = options_.mark_cycles;
  const AllSignalsBlocked inherited;
  thread_ = std::thread([this] { run(); });
  active_ = true;
  return Status::ok();
}

void Timeline::stop() {
  const std::lock_guard control(control_);
  end_writer();
}

void Timeline::end_writer() {
  active_ = false;
  marks_cycles_ = false;
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
  file_.reset();
}

void Timeline::record(Trace trace) {
  if (!active()) return;
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    recorded_.push_back(std::move(trace));
    count = recorded_.size();
  }
  if (count == 1 || count == kMany) changed_.notify_one();
}

void Timeline::run() {
  ::pthread_setname_np(::pthread_self(), "hvd-timeline");
  std::vector<Trace> traces;
  for (bool last = false; !last;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !recorded_.empty(); });
      changed_.wait_for(lock, kGather, [&] { return stopping_ || recorded_.size() >= kMany; });
      last = stopping_;
      traces.swap(recorded_);
    }
    Status status = write(traces);
    if (last && status.is_ok()) {
      std::string rest;
      rows_->end_file(rest, std::chrono::steady_clock::now());
      status = file_->append(rest);
    }
    traces.clear();
    if (!status.is_ok()) {
      active_ = false;
      log(LogLevel::kError,
          "The timeline ends here, and the job goes on without it: " + status.text());
      return;
    }
  }
}

Status Timeline::write(const std::vector<Trace>& traces) {
  std::string lines;
  for (const Trace& trace : traces) {
    rows_->add(lines, trace);
    if (options_.max_bytes == 0 || file_->size() + lines.size() < options_.max_bytes) continue;
    rows_->end_file(lines, std::chrono::steady_clock::now());
    if (Status status = file_->append(lines); !status.is_ok()) return status;
    lines.clear();
    if (Status status = rotate(); !status.is_ok()) return status;
  }
  return lines.empty() ? Status::ok() : file_->append(lines);
}

Status Timeline::rotate() {
  std::unique_ptr<ArrayFile> next;
  if (Status status = ArrayFile::create(options_.path + ".new", next); !status.is_ok()) {
    return status;
  }
  std::string head;
  rows_->begin_file(head, std::chrono::steady_clock::now(), epoch_micros());
  if (Status status = next->append(head); !status.is_ok()) return status;
  // Thus there always is a file of this name, unless names can't be exchanged.
  next->exchange_names(*file_);
  if (Status status = file_->rename(options_.path + ".1"); !status.is_ok()) return status;
  file_ = std::move(next);
  return file_->rename(options_.path);
}

}  // namespace hvd
