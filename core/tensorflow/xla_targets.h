// What compiled functions can call in this plug-in, and how it is made known to XLA.
#pragma once

#include <string>

namespace hvd::tensorflow {

inline constexpr const char* kXlaCollective = "horovod_collective";
inline constexpr const char* kXlaStart = "horovod_start";  // the collective in two halves
inline constexpr const char* kXlaDone = "horovod_done";
inline constexpr const char* kXlaQuestion = "horovod_question";

// Registers the targets with XLA's FFI: asynchronous. Returns why that is not possible; empty: done.
std::string register_xla_ffi();

// Registers the targets as plain custom calls, which block. Returns why that is not possible; empty: done.
std::string register_xla_blocking();

}  // namespace hvd::tensorflow
