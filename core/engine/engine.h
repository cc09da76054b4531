// Engine: one per process. Owns the connections, the two roles and their threads, and what is in flight.
//
// Two roles, each held by one thread at a time:
//   negotiation  agree with the other ranks what is executed (Negotiator)
//   execution    execute it, in the order of the response log (Executor)
// Each role has a thread that sleeps in the kernel until there is work. But whoever waits, works: a
// caller blocked in `wait` takes the roles itself while its core has nothing else to do, and so a small
// operation needs no switch of threads at all. `submit` takes the negotiation role for one round, too.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/config.h"
#include "engine/data_links.h"
#include "engine/doorbells.h"
#include "engine/executor.h"
#include "engine/flight_dumps.h"
#include "engine/inbox.h"
#include "engine/instruments.h"
#include "engine/job_state.h"
#include "engine/negotiator.h"
#include "engine/stack_source.h"
#include "engine/step_counter.h"
#include "engine/timeline_control.h"
#include "engine/tree.h"
#include "transport/arena.h"
#include "transport/region.h"

namespace hvd {

// What Python hands over: plain values and descriptors, all of which the engine owns from then on.
struct EngineParts {
  Config config;
  Topology topology;
  std::map<Rank, int> regions;       // memory files of all ranks of this host
  std::map<Rank, int> doorbells;     // event descriptors of all ranks of this host
  std::map<Rank, int> host_sockets;  // Unix sockets to the other ranks of this host
  std::map<Rank, int> tree_sockets;  // TCP sockets of tree edges that leave the host
  Rank parent = -1;                  // -1: the root
  std::vector<Rank> children;
};

// One call of a user: one tensor, or the members of a group.
struct Submission {
  std::vector<Request> requests;
  std::vector<WorkTensor> tensors;       // parallel to `requests`
  bool urgent = false;                   // the caller is going to wait for it at once
  std::function<void(Handle&)> on_done;  // the caller does not wait at all: see Handle
};

class Engine {
 public:
  // Throws std::system_error when shared memory or an event cannot be had.
  explicit Engine(EngineParts parts);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Never blocks. Not ok: nothing was submitted.
  Status submit(Submission submission, std::shared_ptr<Handle>& handle);
  // Whether it is done; never blocks. Somebody who asks wants it soon.
  bool poll(Handle& handle);
  // A caller is going to wait for what the handle stands for: execute it soon.
  void mark_urgent(Handle& handle);
  // Helps, then sleeps. Returns whether it is done: false after a signal or half a second.
  bool wait(Handle& handle);

  // The caller of `wait` will not come back before it is done.
  void stop_waiting(Handle& handle);

  // Ends the job on all ranks, or this rank's part of an aborted one; joins the threads. Idempotent.
  void stop();

  Status status() const { return state_.status(); }
  bool is_running() const { return state_.is_running(); }
  DataLinks& links() { return links_; }
  std::map<ProcessSetId, std::vector<Rank>> process_sets() const;
  // Its members in ascending order; nullptr when there is no such set.
  std::shared_ptr<const std::vector<Rank>> members_of(ProcessSetId set) const;
  const Topology& topology() const { return topology_; }
  // Single values of what the engine has done; see also `metrics`.
  std::map<std::string, std::uint64_t> counters() const;
  const Metrics& metrics() const { return instruments_.metrics; }
  // At the root: seconds that the others waited for each rank over the last window.
  std::map<Rank, double> straggler_seconds() const { return negotiator_.straggler_seconds(); }

  // At the start: how this rank's clock differs from rank 0's. Whether the timeline of the configuration could be
  // begun: where ranks of several hosts write one it begins now, else it has begun with the engine.
  Status set_clock(double offset_micros, double error_micros);
  // From any rank, for all; an empty path ends it. Blocks until it is so.
  Status control_timeline(const std::string& path, bool mark_cycles);

  // Training steps that have begun.
  std::uint64_t steps() const { return steps_.steps(); }
  // Until `count` training steps have begun; false: out of time, or the job has ended.
  bool wait_for_steps(std::uint64_t count, std::chrono::nanoseconds limit) {
    return steps_.wait(count, limit);
  }
  // At the root only; other ranks are told to ask there.
  Status set_parameters(std::int64_t fusion_threshold_bytes, double cycle_time_ms,
                        bool cache_enabled);

  StackSource& stacks() { return stacks_; }
  // Writes the flight recorder's dump soon, with stacks. Safe from any thread.
  void demand_dump(const std::string& reason);
  // What wakes the engine's thread; for `install_dump_signal`.
  int wake_descriptor() const { return doorbells_.own_descriptor(); }

  // In the child after fork: gives back the descriptors, so that a peer still sees this process's end.
  void close_in_child();

 private:
  class HostPeers;

  // `now`: a moment ago; reading the clock costs as much as much else here.
  void negotiate(bool helping, TimePoint now);
  void help(const Handle& handle, TimePoint now);
  bool sleep(Handle& handle, std::chrono::steady_clock::time_point began);
  bool clocks_matter() const;
  Status begin_timeline();
  std::uint64_t executed_bytes() const;
  void stop_helping();
  void leave_rest_to_thread();
  void negotiation_thread();
  void execution_thread();
  void prepare_thread(const char* name);
  void arm_timer(TimePoint now);
  void handle_event(int descriptor);
  bool may_leave();
  void watch(int descriptor, std::uint32_t events);

  Config config_;
  Topology topology_;
  JobState state_;
  Instruments instruments_;
  std::map<Rank, std::unique_ptr<Region>> regions_;
  Doorbells doorbells_;
  std::unique_ptr<HostPeers> host_peers_;
  Tree tree_;
  DataLinks links_;
  std::unique_ptr<Arena> arena_;
  OperationTable table_;
  Inbox inbox_;
  Executor executor_;
  StackSource stacks_;
  FlightDumps dumps_;
  StepCounter steps_;
  TimelineControl timeline_control_;
  Status timeline_status_;
  Negotiator negotiator_;
  std::mutex negotiation_role_;

  std::atomic<std::uint64_t> output_bytes_allocated_{0};

  Descriptor epoll_;
  Descriptor timer_;
  TimePoint armed_{};  // when the timer fires; past: not armed
  std::vector<int> descriptors_;
  bool leaving_ = false;  // goodbye was said
  TimePoint leave_by_{};
  std::atomic<bool> stop_requested_{false};
  std::atomic<bool> executor_done_{false};
  std::mutex stop_mutex_;
  std::thread execution_thread_;
  std::thread negotiation_thread_;
};

}  // namespace hvd
