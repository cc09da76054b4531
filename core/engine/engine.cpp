#include "engine/engine.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "backends/native.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/signals.h"

namespace hvd {

namespace {

// How long a blocked caller looks for work itself before it leaves that to the engine's threads.
constexpr std::chrono::microseconds kHelpTime{200};
constexpr std::chrono::microseconds kSpinBeforeYield{10};
// While it executes less than this, a caller keeps counting as poller of its rings.
constexpr std::size_t kSmallWork = 64 << 10;
constexpr std::chrono::milliseconds kWaitSlice{500};
constexpr std::chrono::seconds kLeaveTime{10};
constexpr char kGoodbye = 'G';
constexpr const char* kDynamicTimeline = "DYNAMIC";  // nothing is recorded until somebody asks

std::map<Rank, std::unique_ptr<Region>> map_regions(const std::map<Rank, int>& files,
                                                    const Config& config) {
  std::map<Rank, std::unique_ptr<Region>> regions;
  for (const auto& [rank, file] : files) {
    const Descriptor owned(file);  // the mapping outlives the descriptor
    regions[rank] = std::make_unique<Region>(file, config);
  }
  return regions;
}

std::map<Rank, Descriptor> own(const std::map<Rank, int>& descriptors) {
  std::map<Rank, Descriptor> owned;
  for (const auto& [rank, fd] : descriptors) owned[rank] = Descriptor(fd);
  return owned;
}

// All ranks whose way to the root leads through `rank` need not be known: on a host with its leader
// they are the host's ranks; a leader's subtree adds the hosts below it.
RankSet subtree_of(const Topology& topology, const std::vector<Rank>& children) {
  RankSet subtree(topology.rank);
  for (const Rank child : children) {
    const std::size_t host = topology.host_of(child);
    if (host == topology.host_of(topology.rank)) {
      subtree.add(RankSet(child));
      continue;
    }
    // A child on another host leads that host and, in the k-ary tree of leaders, hosts further down.
    for (std::size_t below = 0; below < topology.hosts.size(); ++below) {
      std::size_t up = below;
      while (up > host) up = (up - 1) / kTreeFanOut;
      if (up == host) subtree.add(RankSet::of(topology.hosts[below]));
    }
  }
  return subtree;
}

std::unique_ptr<Arena> make_arena(const Config& config, const Topology& topology,
                                  const std::map<Rank, std::unique_ptr<Region>>& regions,
                                  WaitControl& wait) {
  std::vector<std::span<std::byte>> lanes;
  std::size_t self = 0;
  for (const Rank rank : topology.hosts[topology.host_of(topology.rank)]) {
    if (rank == topology.rank) self = lanes.size();
    lanes.push_back(regions.at(rank)->lane());
  }
  return std::make_unique<Arena>(config, std::move(lanes), self, wait);
}

std::vector<std::unique_ptr<Backend>> make_backends(const Config& config, const Topology& topology,
                                                    Arena* arena, Links& links, WaitControl& wait) {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(std::make_unique<NativeBackend>(config, topology, arena, links, wait));
  return backends;
}

bool host_has_core_for_each_rank(const Topology& topology) {
  const auto local_ranks = topology.hosts[topology.host_of(topology.rank)].size();
  return static_cast<std::size_t>(topology.cores) >= local_ranks;
}

// One host, and its ranks' own threads take all of its cores.
bool no_core_to_spare(const Topology& topology) {
  return topology.hosts.size() == 1 && topology.size > 1 && topology.cores < 2 * topology.size;
}

}  // namespace

// The Unix sockets to the other ranks of this host. Nothing is said on them but goodbye; their end is
// how a peer's death is learnt at once.
class Engine::HostPeers {
 public:
  explicit HostPeers(const std::map<Rank, int>& sockets) {
    for (const auto& [rank, fd] : sockets) peers_[fd] = Peer{rank, Descriptor(fd), false};
  }

  std::vector<int> descriptors() const {
    std::vector<int> descriptors;
    for (const auto& [fd, peer] : peers_) descriptors.push_back(fd);
    return descriptors;
  }

  // The rank behind `descriptor` if its end came without a goodbye.
  std::optional<Rank> read(int descriptor) {
    const auto found = peers_.find(descriptor);
    if (found == peers_.end()) return std::nullopt;
    Peer& peer = found->second;
    std::array<char, 16> bytes{};
    for (;;) {
      const ssize_t got = ::recv(descriptor, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (got > 0) {
        peer.goodbye = bytes[0] == kGoodbye;
        continue;
      }
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
      return peer.goodbye ? std::nullopt : std::optional(peer.rank);
    }
  }

  void say_goodbye() {
    for (const auto& [fd, peer] : peers_) {
      // A peer that is gone does not need it.
      [[maybe_unused]] const ssize_t sent = ::send(fd, &kGoodbye, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

 private:
  struct Peer {
    Rank rank = -1;
    Descriptor socket;
    bool goodbye = false;
  };
  std::map<int, Peer> peers_;
};

Engine::Engine(EngineParts parts)
    : config_(std::move(parts.config)),
      topology_(std::move(parts.topology)),
      state_(host_has_core_for_each_rank(topology_)),
      instruments_(static_cast<std::size_t>(config_.flight_recorder_size)),
      regions_(map_regions(parts.regions, config_)),
      doorbells_(own(parts.doorbells), regions_, topology_.rank),
      host_peers_(std::make_unique<HostPeers>(parts.host_sockets)),
      tree_(topology_, parts.parent, parts.children, regions_, own(parts.tree_sockets), doorbells_),
      links_(topology_, state_),
      arena_(make_arena(config_, topology_, regions_, state_)),
      executor_(make_backends(config_, topology_, arena_.get(), links_, state_), table_, state_,
                *arena_, no_core_to_spare(topology_), instruments_),
      stacks_([this] { doorbells_.ring_self(); }),
      dumps_(config_, topology_, instruments_, table_, stacks_,
             [this] { return negotiator_.process_sets(); }),
      negotiator_(config_, topology_, subtree_of(topology_, parts.children), tree_, inbox_, table_,
                  executor_, state_, no_core_to_spare(topology_),
                  {instruments_, dumps_, steps_, timeline_control_}),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!epoll_ || !timer_) throw std::system_error(errno, std::generic_category(), "epoll, timerfd");
  configure_log(static_cast<LogLevel>(config_.log_level), config_.log_hide_time, topology_.rank);
  watch(doorbells_.own_descriptor(), EPOLLIN);
  watch(timer_.get(), EPOLLIN);
  watch(state_.abort_descriptor(), EPOLLIN | EPOLLONESHOT);
  for (const int fd : host_peers_->descriptors()) watch(fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
  for (const int fd : tree_.descriptors()) watch(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
  descriptors_.push_back(epoll_.get());
  // Before anything can be announced, so that it shows from the beginning.
  if (!clocks_matter()) timeline_status_ = begin_timeline();
  const AllSignalsBlocked inherited;
  try {
    execution_thread_ = std::thread([this] { execution_thread(); });
    negotiation_thread_ = std::thread([this] { negotiation_thread(); });
  } catch (const std::system_error&) {
    executor_.close();
    if (execution_thread_.joinable()) execution_thread_.join();
    throw;
  }
}

Engine::~Engine() { stop(); }

void Engine::watch(int descriptor, std::uint32_t events) {
  epoll_event event{.events = events, .data = {.fd = descriptor}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
  descriptors_.push_back(descriptor);
}

void Engine::close_in_child() {
  for (const int descriptor : descriptors_) ::close(descriptor);
  links_.close_in_child();
}

// --- Callers --------------------------------------------------------------------------------------

bool Engine::poll(Handle& handle) {
  if (handle.is_done()) return true;
  if (!handle.urgent) {
    mark_urgent(handle);
    negotiate(false, std::chrono::steady_clock::now());
  }
  executor_.hurry();
  return handle.is_done();
}

Status Engine::submit(Submission submission, std::shared_ptr<Handle>& handle) {
  if (!state_.is_running()) return state_.status();
  auto created = std::make_shared<Handle>(submission.requests.size());
  std::vector<std::shared_ptr<Operation>> operations;
  operations.reserve(submission.requests.size());
  const auto now = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < submission.requests.size(); ++i) {
    auto operation = std::make_shared<Operation>();
    operation->request = std::move(submission.requests[i]);
    operation->tensor = std::move(submission.tensors[i]);
    operation->handle = created;
    operation->index = i;
    operation->submitted = now;
    if (operation->tensor.output == nullptr && !operation->tensor.allocate) {
      // The handle outlives the execution: the operation holds it.
      operation->tensor.allocate = [this, result = &created->results[i]](const Shape&,
                                                                         std::size_t bytes) {
        output_bytes_allocated_.fetch_add(bytes, std::memory_order_relaxed);
        result->buffer.reset(static_cast<std::byte*>(
            std::aligned_alloc(64, (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64)));
        result->bytes = bytes;
        return static_cast<void*>(result->buffer.get());
      };
    }
    operations.push_back(std::move(operation));
  }
  Status status = table_.add(operations);
  if (!status.is_ok()) return status;
  for (const auto& operation : operations) {
    operation->serial = instruments_.recorder.submitted(operation->request, now);
  }
  created->operations.assign(operations.begin(), operations.end());
  created->urgent = submission.urgent;
  const bool will_wait = submission.urgent && !submission.on_done;
  created->on_done = std::move(submission.on_done);
  handle = std::move(created);
  inbox_.put(operations, submission.urgent);
  negotiate(will_wait, now);
  // Done already: the caller may never come to `wait`, which would do this.
  if (will_wait && handle->is_done()) stop_helping();
  return Status::ok();
}

void Engine::mark_urgent(Handle& handle) {
  if (handle.urgent || handle.is_done()) return;
  handle.urgent = true;
  for (const auto& held : handle.operations) {
    const auto operation = held.lock();
    if (operation != nullptr && !operation->executing) {
      inbox_.put(UrgentMark{operation->request.process_set, operation->request.name});
    }
  }
}

bool Engine::wait(Handle& handle) {
  if (handle.is_done()) {
    stop_waiting(handle);
    stop_helping();
    return true;
  }
  const auto began = std::chrono::steady_clock::now();
  const bool traced = instruments_.timeline.active();
  const auto awaited = traced ? first_in_flight(handle) : nullptr;
  state_.caller_blocks();
  mark_urgent(handle);
  help(handle, began);
  const bool done = handle.is_done() || sleep(handle, began);
  if (done) stop_waiting(handle);
  state_.caller_returns();
  const auto ended = std::chrono::steady_clock::now();
  instruments_.metrics.wait_nanoseconds.add(nanoseconds_between(began, ended));
  if (traced) {
    instruments_.timeline.record(
        WaitTrace{began, ended, ::gettid(), awaited ? awaited->request.name : ""});
  }
  return done;
}

bool Engine::sleep(Handle& handle, std::chrono::steady_clock::time_point began) {
  if (!handle.blocks_caller.exchange(true)) dumps_.blocked().enter(handle, began);
  for (const auto end = began + kWaitSlice;;) {
    executor_.enlist(handle);
    const Woken woken = handle.sleep(std::max(end - std::chrono::steady_clock::now(), {}));
    executor_.dismiss(handle);
    if (woken != Woken::kCalled) break;
    help(handle, std::chrono::steady_clock::now());
  }
  // It may have been called just now, for work that it will not do any more.
  executor_.hand_over();
  return handle.is_done();
}

void Engine::stop_waiting(Handle& handle) {
  if (!handle.blocks_caller.load(std::memory_order_relaxed)) return;
  if (handle.blocks_caller.exchange(false)) dumps_.blocked().leave(handle);
}

namespace {

// This thread polls the rings of its rank, so that peers need not ring, until it leaves or sleeps.
class Polling final : public SleepNotice {
 public:
  explicit Polling(Doorbells& doorbells) : doorbells_(doorbells) { enter(); }
  ~Polling() override { leave(); }
  void enter() {
    if (!active_) doorbells_.start_polling();
    active_ = true;
    SleepNotice::current = this;
  }
  void leave() {
    if (active_) doorbells_.stop_polling();
    active_ = false;
    SleepNotice::current = nullptr;
  }
  void going_to_sleep() override {
    leave();
    // What came in the meantime is for the engine's thread.
    doorbells_.ring_self();
  }

 private:
  Doorbells& doorbells_;
  bool active_ = false;
};

}  // namespace

void Engine::help(const Handle& handle, TimePoint now) {
  {
    Polling polling(doorbells_);
    const auto patience = state_.may_spin() ? kHelpTime : std::chrono::microseconds(0);
    for (TimePoint give_up = now + patience;; now = std::chrono::steady_clock::now()) {
      negotiate(true, now);
      if (handle.is_done()) break;
      if (!executor_.empty()) {
        if (executor_.next_bytes() > kSmallWork) {
          polling.leave();
          leave_rest_to_thread();
        }
        const bool ran = executor_.try_run_one();
        polling.enter();
        if (handle.is_done()) break;
        if (ran) {
          give_up = std::chrono::steady_clock::now() + patience;
          continue;
        }
      }
      if (now >= give_up) break;
      // A peer that answers does so within a few microseconds. After that it may be that it has no
      // core to answer on: this one, perhaps.
      if (give_up - now > kHelpTime - kSpinBeforeYield) {
        cpu_relax();
      } else {
        ::sched_yield();
      }
    }
  }
  stop_helping();
}

// Whatever a helping thread has put off or may have overlooked is for the engine's threads from now on.
void Engine::stop_helping() {
  leave_rest_to_thread();
  executor_.hand_over();
}

void Engine::leave_rest_to_thread() {
  if (tree_.bells_put_off()) {
    const std::lock_guard role(negotiation_role_);
    negotiator_.ring_put_off_bells();
  }
  if (tree_.readable() || tree_.has_backlog() || inbox_.has_content()) doorbells_.ring_self();
}

void Engine::negotiate(bool helping, TimePoint now) {
  do {
    const std::unique_lock role(negotiation_role_, std::try_to_lock);
    if (!role) return;  // its holder looks into the inbox again after it has let go
    negotiator_.progress(now, helping);
    arm_timer(now);
  } while (inbox_.has_content());
}

// --- Threads --------------------------------------------------------------------------------------

void Engine::arm_timer(TimePoint now) {
  const std::optional<TimePoint> deadline = negotiator_.next_deadline();
  if (!deadline) return;
  if (armed_ > now && armed_ <= *deadline) return;
  armed_ = std::max(*deadline, now + std::chrono::microseconds(1));
  const auto since_epoch = armed_.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_epoch);
  const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch - seconds);
  const itimerspec when{.it_interval = {},
                        .it_value = {.tv_sec = seconds.count(), .tv_nsec = rest.count()}};
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

void Engine::prepare_thread(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
  if (config_.thread_affinity.empty()) return;
  const auto& local_ranks = topology_.hosts[topology_.host_of(topology_.rank)];
  const auto local_rank = static_cast<std::size_t>(std::ranges::find(local_ranks, topology_.rank) -
                                                   local_ranks.begin());
  if (local_rank >= config_.thread_affinity.size()) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(config_.thread_affinity[local_rank]), &cores);
  if (::pthread_setaffinity_np(::pthread_self(), sizeof cores, &cores) != 0) {
    log(LogLevel::kWarning, "HOROVOD_THREAD_AFFINITY: core " +
                                std::to_string(config_.thread_affinity[local_rank]) +
                                " is not available to this process; thread not bound");
  }
}

void Engine::execution_thread() {
  prepare_thread("hvd-execute");
  executor_.run();
  executor_done_.store(true);
  doorbells_.ring_self();
}

void Engine::handle_event(int descriptor) {
  if (descriptor == doorbells_.own_descriptor()) {
    doorbells_.silence();
  } else if (descriptor == timer_.get()) {
    std::uint64_t expirations = 0;
    [[maybe_unused]] const ssize_t got = ::read(descriptor, &expirations, sizeof expirations);
  } else if (const auto dead = host_peers_->read(descriptor); dead && !leaving_) {
    state_.abort(*dead, topology_.describe(*dead) +
                            " has died: its connections closed without a goodbye. See that rank's "
                            "output for the reason; this job cannot go on without it.");
  }
}

void Engine::negotiation_thread() {
  prepare_thread("hvd-negotiate");
  std::array<epoll_event, 32> events{};
  while (!may_leave()) {
    const int timeout = leaving_ ? 100 : -1;
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), timeout);
    for (int i = 0; i < count; ++i) handle_event(events[static_cast<std::size_t>(i)].data.fd);
    do {
      const std::lock_guard role(negotiation_role_);
      const TimePoint now = std::chrono::steady_clock::now();
      negotiator_.progress(now, false);
      arm_timer(now);
    } while (inbox_.has_content());
  }
}

// After the shutdown entry or an abort: let the executor end, say goodbye, see the neighbours off.
bool Engine::may_leave() {
  if (state_.is_running()) return false;
  const bool aborted = state_.aborted();
  if (aborted) links_.stop(state_.status());
  if (aborted && !stop_requested_.load()) return false;
  executor_.close();
  if (!executor_done_.load()) return false;
  const TimePoint now = std::chrono::steady_clock::now();
  if (!leaving_) {
    leaving_ = true;
    leave_by_ = now + kLeaveTime;
    links_.stop(state_.status());
    const std::lock_guard role(negotiation_role_);
    negotiator_.say_goodbye();
    host_peers_->say_goodbye();
  }
  if (aborted || now >= leave_by_) return true;
  const std::lock_guard role(negotiation_role_);
  return tree_.neighbours_left();
}

void Engine::stop() {
  const std::lock_guard lock(stop_mutex_);
  stacks_.end();
  stop_requested_.store(true);
  inbox_.put_shutdown();
  doorbells_.ring_self();
  if (negotiation_thread_.joinable()) negotiation_thread_.join();
  if (execution_thread_.joinable()) execution_thread_.join();
  instruments_.timeline.stop();
}

// --- Seeing and tuning ----------------------------------------------------------------------------

bool Engine::clocks_matter() const {
  return config_.timeline_all_ranks && topology_.hosts.size() > 1;
}

Status Engine::begin_timeline() {
  if (config_.timeline_path.empty() || config_.timeline_path == kDynamicTimeline) {
    return Status::ok();
  }
  return negotiator_.begin_timeline(config_.timeline_path, config_.timeline_mark_cycles);
}

Status Engine::set_clock(double offset_micros, double error_micros) {
  const std::lock_guard role(negotiation_role_);
  negotiator_.set_clock(offset_micros, error_micros);
  return clocks_matter() ? begin_timeline() : timeline_status_;
}

Status Engine::control_timeline(const std::string& path, bool mark_cycles) {
  if (!state_.is_running()) return state_.status();
  const std::uint64_t number = timeline_control_.open();
  inbox_.put(TimelineCommand{topology_.rank, number, path, mark_cycles});
  negotiate(false, std::chrono::steady_clock::now());
  return timeline_control_.wait(number);
}

Status Engine::set_parameters(std::int64_t fusion_threshold_bytes, double cycle_time_ms,
                              bool cache_enabled) {
  if (!negotiator_.is_root()) {
    return Status::invalid_argument("Parameters are set on rank 0, for all ranks.");
  }
  const std::lock_guard role(negotiation_role_);
  negotiator_.set_parameters(fusion_threshold_bytes, cycle_time_ms, cache_enabled);
  return Status::ok();
}

void Engine::demand_dump(const std::string& reason) {
  dumps_.demand(reason);
  doorbells_.ring_self();
}

std::map<ProcessSetId, std::vector<Rank>> Engine::process_sets() const {
  return negotiator_.process_sets();
}

std::shared_ptr<const std::vector<Rank>> Engine::members_of(ProcessSetId set) const {
  return negotiator_.members_of(set);
}

std::uint64_t Engine::executed_bytes() const {
  std::uint64_t bytes = 0;
  for (const Count& of_kind : instruments_.metrics.bytes) bytes += of_kind.get();
  return bytes;
}

std::map<std::string, std::uint64_t> Engine::counters() const {
  return {
      {"operations_submitted", table_.added()},
      {"operations_in_flight", table_.size()},
      {"responses_executed", instruments_.metrics.responses.get()},
      {"bytes_executed", executed_bytes()},
      {"queue_depth", executor_.queued()},
      {"flight_dumps", dumps_.written()},
      {"messages_sent", tree_.messages_sent()},
      {"doorbells_rung", doorbells_.rung()},
      {"output_bytes_allocated", output_bytes_allocated_.load(std::memory_order_relaxed)},
  };
}

}  // namespace hvd
