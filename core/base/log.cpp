#include "base/log.h"

#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <string>

namespace hvd {

namespace {

struct LogSettings {
  std::atomic<int> least{static_cast<int>(LogLevel::kWarning)};
  std::atomic<bool> hide_time{false};
  std::atomic<Rank> rank{0};
};

LogSettings settings;

std::string time_stamp() {
  timeval now{};
  ::gettimeofday(&now, nullptr);
  std::tm parts{};
  ::localtime_r(&now.tv_sec, &parts);
  char text[40];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  std::string stamp(text, length);
  std::string micros = std::to_string(now.tv_usec);
  return stamp + "." + std::string(6 - micros.size(), '0') + micros;
}

}  // namespace

void configure_log(LogLevel least, bool hide_time, Rank rank) {
  settings.least = static_cast<int>(least);
  settings.hide_time = hide_time;
  settings.rank = rank;
}

bool log_enabled(LogLevel level) { return static_cast<int>(level) >= settings.least; }

void log(LogLevel level, std::string_view text, std::source_location where) {
  if (!log_enabled(level)) return;
  const std::string_view path = where.file_name();
  const std::string_view file = path.substr(path.find_last_of('/') + 1);
  std::string line = "[";
  if (!settings.hide_time) line += time_stamp() + ": ";
  line += "TDIWEF"[static_cast<int>(level)];
  line += " ";
  line += file;
  line += ":" + std::to_string(where.line()) + "] [" + std::to_string(settings.rank) + "]: ";
  line += text;
  line += "\n";
  // One write, so that lines of several threads do not mix. Nobody to tell when it fails.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace hvd
