// Everything a user can tune, as plain values. Filled in by horovod.common.knobs; the core reads
// no environment variable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"

namespace hvd {

struct Config {
  std::int64_t fusion_threshold_bytes = 128 << 20;  // 0: no fusion
  double cycle_time_ms = 1.0;          // longest wait of a complete tensor for others to fuse with
  std::int64_t cache_capacity = 1024;  // response cache entries; 0: off
  bool disable_group_fusion = false;   // fuse a group only within itself
  bool dynamic_process_sets = false;
  bool stall_check = true;
  double stall_warning_seconds = 60.0;
  double stall_shutdown_seconds = 1800.0;    // 0: never
  double straggler_share = 0.1;              // of the time; 0: never warn
  std::int64_t flight_recorder_size = 2000;  // operations remembered; 0: off
  std::string flight_recorder_dir;           // where dumps go; empty: nowhere
  std::string timeline_path;                 // empty: off; DYNAMIC: when it is asked for
  bool timeline_mark_cycles = false;
  bool timeline_all_ranks = false;
  std::int64_t timeline_max_mb = 1024;  // 0: no limit
  std::int64_t slot_bytes = 512 << 10;  // arena: size of one staging slot
  std::int32_t slots = 4;               // arena: staging slots per rank; at least 3
  std::int32_t log_level = 3;           // LogLevel: 0 trace ... 5 fatal
  bool log_hide_time = false;
  std::vector<std::int32_t> thread_affinity;  // core of each local rank; empty: leave to the kernel
};

// Leaders of hosts form a k-ary tree in the order of hosts; horovod.common.connect builds the same.
inline constexpr std::size_t kTreeFanOut = 8;

// Who is where. Ranks of one host share an arena; `hosts` is ordered by lowest rank.
struct Topology {
  Rank rank = 0;
  Rank size = 1;
  std::vector<std::vector<Rank>> hosts;  // global ranks of each host, ascending
  std::vector<std::string> host_names;   // parallel to `hosts`, for messages
  int cores = 1;                         // cores this process may use

  std::size_t host_of(Rank r) const;  // index into `hosts`
  const std::string& host_name_of(Rank r) const { return host_names[host_of(r)]; }
  std::string describe(Rank r) const;  // "Rank 3 on host b", as messages begin
};

}  // namespace hvd
