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
#include "engine/inbox.h"
#include "engine/job_state.h"
#include "engine/negotiator.h"
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
  bool poll(const Handle& handle);
  // A caller is going to wait for what the handle stands for: execute it soon.
  void mark_urgent(Handle& handle);
  // Helps, then sleeps. Returns whether it is done: false after a signal or half a second.
  bool wait(Handle& handle);

  // Ends the job on all ranks, or this rank's part of an aborted one; joins the threads. Idempotent.
  void stop();

  Status status() const { return state_.status(); }
  bool is_running() const { return state_.is_running(); }
  DataLinks& links() { return links_; }
  std::map<ProcessSetId, std::vector<Rank>> process_sets() const;
  // Its members in ascending order; nullptr when there is no such set.
  std::shared_ptr<const std::vector<Rank>> members_of(ProcessSetId set) const;
  const Topology& topology() const { return topology_; }
  std::map<std::string, std::uint64_t> counters() const;

  // In the child after fork: gives back the descriptors, so that a peer still sees this process's end.
  void close_in_child();

 private:
  class HostPeers;

  void negotiate(bool helping);
  void help(const Handle& handle);
  void stop_helping();
  void leave_rest_to_thread();
  void negotiation_thread();
  void execution_thread();
  void prepare_thread(const char* name);
  void arm_timer();
  void handle_event(int descriptor);
  bool may_leave();
  void watch(int descriptor, std::uint32_t events);

  Config config_;
  Topology topology_;
  JobState state_;
  std::map<Rank, std::unique_ptr<Region>> regions_;
  Doorbells doorbells_;
  std::unique_ptr<HostPeers> host_peers_;
  Tree tree_;
  DataLinks links_;
  std::unique_ptr<Arena> arena_;
  OperationTable table_;
  Inbox inbox_;
  Executor executor_;
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
