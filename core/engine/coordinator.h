// Coordinator: the root's half of negotiation. Pure: (message, clock) -> log entries. No socket, no
// thread. Decides which tensors are complete, whether ranks agree, what is fused and when to flush.
//
// Use, on the root only: `receive` every up message of its own rank and of its children, then
// `take_entries`; each entry goes to the root's own replica and executor and, in the same order, to
// all children. At `next_deadline` call `take_entries` and `take_stall_warning` again. After a
// ShutdownEntry the coordinator ignores everything and gives no entries.
//
// A flush puts everything that is complete into the log, in the order of completion, fused. It
// happens when a complete tensor is urgent or of a kind that never fuses (waiting would gain
// nothing), when a group is complete, when the threshold is reached, or when the first complete
// tensor has waited for the cycle time; for at least 20 ms in a patient job, in which deciding sooner
// would gain nothing.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "engine/stall_report.h"
#include "engine/stragglers.h"
#include "wire/messages.h"

namespace hvd {

using TimePoint = std::chrono::steady_clock::time_point;

class Coordinator {
 public:
  // `patient`: what is ready executes only when somebody waits for it, see Executor.
  Coordinator(const Config& config, Rank world_size, bool patient = false);
  ~Coordinator();

  // A message of the root's own rank or from a child.
  void receive(const UpMessage& message, TimePoint now);

  // Entries that are to be appended to the log now, in order. Call after `receive` and at
  // deadlines.
  std::vector<LogEntry> take_entries(TimePoint now);

  // When `take_entries` should be called even if nothing arrives; nullopt: never (idle).
  std::optional<TimePoint> next_deadline() const;

  // A stall report that has fallen due since the last call, in the text of spec 4.8, or nullopt.
  std::optional<std::string> take_stall_warning(TimePoint now);
  // What that report is about.
  std::vector<StalledOperation> stalled_operations(TimePoint now) const;

  // Something the user should know (the response cache is too small), once each, or nullopt.
  std::optional<std::string> take_warning();

  // Who is waited for. `step`: a training step begins.
  Stragglers& stragglers();

  // From now on. Without the cache, ids are given up as soon as nobody uses them.
  void set_parameters(std::int64_t fusion_threshold_bytes, double cycle_time_ms,
                      bool cache_enabled);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hvd
