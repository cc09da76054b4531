// drive: spin, then poll(2) over the channels of all unfinished flows and the abort descriptor.
#include "collectives/flow.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

namespace hvd {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPollLimitMs = 100;  // then look for an abort
constexpr std::size_t kMaxPieces = 32;
constexpr std::size_t kMaxSend = std::size_t{4}
                                 << 20;  // per call: a longer list of pieces gains nothing

Status aborted() { return Status::aborted("The job was aborted while data moved between hosts."); }

std::vector<Watch> watches_of(std::span<Flow* const> flows) {
  std::vector<Watch> watches;
  for (const Flow* flow : flows) {
    if (!flow->done()) flow->watch(watches);
  }
  return watches;
}

// The first channel that failed while something is still expected of it.
Status failure_of(std::span<Flow* const> flows) {
  for (const Watch& watch : watches_of(flows)) {
    Status status = watch.channel->status();
    if (!status.is_ok()) return Status::aborted(status.text());
  }
  return Status::ok();
}

void sleep_in_kernel(std::span<Flow* const> flows, WaitControl& wait) {
  std::vector<pollfd> descriptors;
  for (const Watch& watch : watches_of(flows)) {
    const int descriptor = watch.channel->descriptor();
    if (descriptor < 0) {  // nothing to poll: memory channels exist in tests only
      sched_yield();
      return;
    }
    const int events = (watch.to_send ? POLLOUT : 0) | (watch.to_receive ? POLLIN : 0);
    descriptors.push_back({descriptor, static_cast<short>(events), 0});
  }
  if (wait.abort_descriptor() >= 0) descriptors.push_back({wait.abort_descriptor(), POLLIN, 0});
  poll(descriptors.data(), descriptors.size(), kPollLimitMs);
}

}  // namespace

Status drive(std::span<Flow* const> flows, WaitControl& wait) {
  bool announced = false;
  Clock::time_point idle_since{};
  while (true) {
    bool moved = false;
    bool done = true;
    for (Flow* flow : flows) {
      if (!flow->done()) moved |= flow->advance();
      done &= flow->done();
    }
    if (idle_since != Clock::time_point{} && moved) wait.data_wait.add(idle_since, Clock::now());
    if (done) return Status::ok();
    if (moved) {
      idle_since = {};
      continue;
    }
    if (wait.aborted()) return aborted();
    if (Status failure = failure_of(flows); !failure.is_ok()) {
      // Bytes that arrived before the failure stay readable: only if none are left it counts.
      for (Flow* flow : flows) moved |= !flow->done() && flow->advance();
      if (!moved) return failure;
      continue;
    }
    const auto now = Clock::now();
    if (idle_since == Clock::time_point{}) idle_since = now;
    if (now - idle_since < wait.spin_time()) continue;
    if (!announced) wait.about_to_sleep();
    announced = true;
    sleep_in_kernel(flows, wait);
  }
}

std::size_t send_some(Channel& channel, const View& view, Side side) {
  std::array<iovec, kMaxPieces> pieces;
  std::size_t count = 0;
  view.part(0, kMaxSend).for_each([&](const Segment& part) {
    if (count == kMaxPieces) return;
    const std::byte* from = side == Side::kInputs ? part.in : part.out;
    pieces[count++] = {const_cast<std::byte*>(from), part.bytes};
  });
  return count == 0 ? 0 : channel.try_send({pieces.data(), count});
}

std::size_t receive_some(Channel& channel, const View& view) {
  std::span<std::byte> first;
  view.for_each([&](const Segment& part) {
    if (first.empty()) first = {part.out, part.bytes};
  });
  return first.empty() ? 0 : channel.try_receive(first);
}

bool SendFlow::advance() {
  const std::size_t now = send_some(channel_, from_.part(sent_, from_.bytes), Side::kInputs);
  sent_ += now;
  return now > 0;
}

void SendFlow::watch(std::vector<Watch>& watches) const {
  watches.push_back({&channel_, true, false});
}

bool ReceiveFlow::advance() {
  const std::size_t now = receive_some(channel_, to_.part(received_, to_.bytes));
  received_ += now;
  return now > 0;
}

void ReceiveFlow::watch(std::vector<Watch>& watches) const {
  watches.push_back({&channel_, false, true});
}

}  // namespace hvd
