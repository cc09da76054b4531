// Log lines of the core on standard error, in the same format as horovod.common.log (spec: "[time: L
// file:line] [rank]: message"). Safe from any thread.
#pragma once

#include <source_location>
#include <string_view>

#include "base/types.h"

namespace hvd {

enum class LogLevel : int {
  kTrace = 0,
  kDebug = 1,
  kInfo = 2,
  kWarning = 3,
  kError = 4,
  kFatal = 5
};

// Set once at start, before the engine's threads exist.
void configure_log(LogLevel least, bool hide_time, Rank rank);

bool log_enabled(LogLevel level);

void log(LogLevel level, std::string_view text,
         std::source_location where = std::source_location::current());

}  // namespace hvd
