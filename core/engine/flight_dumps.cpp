#include "engine/flight_dumps.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/log.h"

namespace hvd {

namespace {

constexpr std::size_t kNamed = 100;  // operations in an answer

std::atomic<int> wake_descriptor{-1};
std::atomic<bool> signalled{false};
static_assert(std::atomic<int>::is_always_lock_free);

// Only what a signal handler may do.
void on_dump_signal(int) {
  const int before = errno;
  const int descriptor = wake_descriptor.load();
  if (descriptor >= 0) {
    signalled.store(true);
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(descriptor, &one, sizeof one);
  }
  errno = before;
}

double seconds_between(FlightDumps::TimePoint from, FlightDumps::TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

void BlockedCallers::enter(const Handle& handle, TimePoint since) {
  {
    const std::lock_guard lock(mutex_);
    if (callers_.contains(&handle)) return;
  }
  Caller caller{kGlobalProcessSet, "", since};
  if (const auto operation = first_in_flight(handle)) {
    caller.process_set = operation->request.process_set;
    caller.name = operation->request.name;
  }
  const std::lock_guard lock(mutex_);
  callers_.emplace(&handle, std::move(caller));
}

void BlockedCallers::leave(const Handle& handle) {
  const std::lock_guard lock(mutex_);
  callers_.erase(&handle);
}

std::vector<BlockedCallers::Caller> BlockedCallers::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<Caller> callers;
  for (const auto& [handle, caller] : callers_) {
    if (!caller.name.empty()) callers.push_back(caller);
  }
  return callers;
}

bool dump_signal_arrived() { return signalled.load(std::memory_order_relaxed); }

void FlightDumps::dump_now(const std::string& reason, const std::string& text) {
  write(reason, text, last_stacks_);
}

void FlightDumps::dump(const std::string& reason, const std::string& text, TimePoint now) {
  wishes_.push_back({reason, text, std::nullopt});
  stacks_.request(now);
}

void FlightDumps::answer(const InquiryMessage& inquiry, TimePoint now) {
  const bool asked = inquiry.ranks.contains(topology_.rank);
  wishes_.push_back({"stall", inquiry.text, asked ? std::optional(inquiry.number) : std::nullopt});
  stacks_.request(now);
}

void FlightDumps::demand(const std::string& reason) {
  const std::lock_guard lock(demand_mutex_);
  demands_.push_back(reason);
  demanded_.store(true, std::memory_order_release);
}

std::vector<AnswerMessage> FlightDumps::progress(TimePoint now) {
  if (dump_signal_arrived() && signalled.exchange(false)) {
    dump("signal", "", now);
  }
  if (demanded_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(demand_mutex_);
    demanded_.store(false, std::memory_order_release);
    for (const std::string& reason : demands_) dump(reason, "", now);
    demands_.clear();
  }
  std::vector<AnswerMessage> answers;
  if (wishes_.empty()) return answers;
  const std::optional<std::string> stacks = stacks_.take(now);
  if (!stacks) return answers;
  last_stacks_ = *stacks;
  for (const Wish& wish : std::exchange(wishes_, {})) {
    if (wish.inquiry) answers.push_back(describe_self(*wish.inquiry, *stacks, now));
    write(wish.reason, wish.text, *stacks);
  }
  return answers;
}

void FlightDumps::finish(TimePoint now) {
  progress(now);
  progress(now + StackSource::kPatience);
}

AnswerMessage FlightDumps::describe_self(std::uint32_t inquiry, const std::string& stacks,
                                         TimePoint now) const {
  AnswerMessage answer{inquiry, topology_.rank, {}, {}, stacks};
  for (const auto& operation : table_.all()) {
    if (answer.in_flight.size() == kNamed) break;
    const Request& request = operation->request;
    answer.in_flight.push_back(
        {request.process_set, request.name, seconds_between(operation->submitted, now)});
  }
  for (const auto& caller : blocked_.all()) {
    answer.blocked.push_back({caller.process_set, caller.name, seconds_between(caller.since, now)});
  }
  return answer;
}

void FlightDumps::write(const std::string& reason, const std::string& text,
                        const std::string& stacks) {
  const std::string& folder = config_.flight_recorder_dir;
  if (folder.empty() || config_.flight_recorder_size == 0) return;
  FlightDump dump{topology_.rank, {}, reason, text, {}, stacks, process_sets_()};
  for (Rank rank = 0; rank < topology_.size; ++rank) {
    dump.hosts.push_back(topology_.host_name_of(rank));
  }
  for (const auto& caller : blocked_.all()) dump.blocked.emplace_back(caller.name, caller.since);
  const std::string path = folder + "/rank" + std::to_string(topology_.rank) + ".json";
  const std::string draft = path + ".new";
  for (std::size_t slash = folder.find('/', 1);; slash = folder.find('/', slash + 1)) {
    ::mkdir(folder.substr(0, slash).c_str(), 0700);  // those that are missing
    if (slash == std::string::npos) break;
  }
  errno = 0;
  bool done = false;
  {
    std::ofstream file(draft, std::ios::binary | std::ios::trunc);
    file << flight_dump_text(instruments_.recorder, dump);
    file.close();
    done = file.good();
  }
  if (!done || std::rename(draft.c_str(), path.c_str()) != 0) {
    log(LogLevel::kError, "The flight recorder can't write '" + path +
                              "': " + std::strerror(errno) + ". The job is not affected.");
    return;
  }
  written_.fetch_add(1, std::memory_order_release);
  const bool speaks = topology_.hosts[topology_.host_of(topology_.rank)].front() == topology_.rank;
  log(speaks && !std::exchange(told_, true) ? LogLevel::kWarning : LogLevel::kInfo,
      "What each rank of this host did last (" + reason + ") is in " + folder +
          "; `horovodrun flight-recorder " + folder +
          "` says which rank diverged first. With several hosts, copy their files together.");
}

bool install_dump_signal(int signal, int descriptor) {
  wake_descriptor.store(descriptor);
  if (descriptor < 0) return true;
  struct sigaction current{};
  if (::sigaction(signal, nullptr, &current) != 0) return false;
  if (current.sa_handler == on_dump_signal) return true;
  if (current.sa_handler != SIG_DFL) return false;
  struct sigaction ours{};
  ours.sa_handler = on_dump_signal;
  ours.sa_flags = SA_RESTART;
  ::sigemptyset(&ours.sa_mask);
  return ::sigaction(signal, &ours, nullptr) == 0;
}

}  // namespace hvd
