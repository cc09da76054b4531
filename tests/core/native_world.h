// A world of ranks as threads for tests of the native backend: lanes in plain memory, memory
// channels between hosts.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/native.h"
#include "transport/memory_channel.h"
#include "transport/tcp_channel.h"

namespace hvd::testing {

using Hosts = std::vector<std::vector<Rank>>;  // ranks of each host

class TestWait final : public WaitControl {
 public:
  explicit TestWait(std::chrono::nanoseconds spin) : spin_(spin) {}
  bool aborted() const override { return aborted_.load(); }
  std::chrono::nanoseconds spin_time() const override { return spin_; }
  bool has_core_for_each_rank() const override { return has_core_.load(); }
  void about_to_sleep() override { sleeps_.fetch_add(1); }
  int abort_descriptor() const override { return -1; }
  void abort() { aborted_.store(true); }
  void give_core() { has_core_.store(true); }
  int sleeps() const { return sleeps_.load(); }

 private:
  std::chrono::nanoseconds spin_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> has_core_{false};
  std::atomic<int> sleeps_{0};
};

class TestLinks final : public Links {
 public:
  Channel* data_channel(Rank peer) override { return channels.at(peer).get(); }
  Status failure() const override { return Status::ok(); }

  std::map<Rank, std::unique_ptr<Channel>> channels;
};

// Zeroed, page-aligned memory of one lane.
class Lane {
 public:
  explicit Lane(std::size_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(::operator new(bytes, kAlignment))) {
    std::fill_n(data_.get(), bytes, std::byte{0});
  }
  std::span<std::byte> span() const { return {data_.get(), bytes_}; }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

enum class ChannelKind { kMemory, kSocket };

inline std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> connected_pair(
    ChannelKind kind, std::size_t capacity) {
  if (kind == ChannelKind::kMemory) return MemoryChannel::make_pair(capacity);
  int sockets[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) std::abort();
  return {std::make_unique<TcpChannel>(Descriptor(sockets[0]), "the second rank"),
          std::make_unique<TcpChannel>(Descriptor(sockets[1]), "the first rank")};
}

class World {
 public:
  explicit World(Hosts hosts, Config config = small_config(),
                 std::chrono::nanoseconds spin = std::chrono::microseconds(20),
                 ChannelKind channels = ChannelKind::kMemory) {
    for (const auto& host : hosts) size_ += static_cast<Rank>(host.size());
    std::map<Rank, std::vector<std::span<std::byte>>> lanes_of;
    std::map<Rank, std::size_t> lane_index;
    for (const auto& host : hosts) {
      std::vector<std::span<std::byte>> lanes;
      for (const Rank rank : host) {
        lane_index[rank] = lanes.size();
        lanes.push_back(lanes_.emplace_back(Arena::lane_bytes(config)).span());
      }
      for (const Rank rank : host) lanes_of[rank] = lanes;
    }
    for (Rank rank = 0; rank < size_; ++rank) {
      auto self = std::make_unique<Member>(spin);
      self->topology.rank = rank;
      self->topology.size = size_;
      self->topology.hosts = hosts;
      self->topology.host_names.resize(hosts.size());
      self->arena = std::make_unique<Arena>(config, lanes_of[rank], lane_index[rank], self->wait);
      members_.push_back(std::move(self));
    }
    for (Rank a = 0; a < size_; ++a) {
      for (Rank b = a + 1; b < size_; ++b) {
        auto [one, two] = connected_pair(channels, kChannelCapacity);
        members_[a]->links.channels[b] = std::move(one);
        members_[b]->links.channels[a] = std::move(two);
      }
    }
    for (auto& member : members_) {
      member->backend = std::make_unique<NativeBackend>(
          config, member->topology, member->arena.get(), member->links, member->wait);
    }
  }

  // Small slots, so that works of a few thousand elements have many pieces.
  static Config small_config() {
    Config config;
    config.slot_bytes = 4096;
    config.slots = 3;
    return config;
  }

  Rank size() const { return size_; }
  NativeBackend& backend(Rank rank) { return *members_[rank]->backend; }
  Arena& arena(Rank rank) { return *members_[rank]->arena; }
  void close_channels(Rank rank) { members_[rank]->links.channels.clear(); }
  TestWait& wait(Rank rank) { return members_[rank]->wait; }

  // Runs `body(rank)` on one thread for each rank.
  template <class Body>
  void run(const std::vector<Rank>& ranks, Body body) {
    std::vector<std::jthread> threads;
    for (const Rank rank : ranks) threads.emplace_back([rank, &body] { body(rank); });
  }

  std::vector<Rank> all() const {
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < size_; ++rank) ranks.push_back(rank);
    return ranks;
  }

 private:
  static constexpr std::size_t kChannelCapacity = 5000;  // small, so that channels are often full

  struct Member {
    explicit Member(std::chrono::nanoseconds spin) : wait(spin) {}
    Topology topology;
    TestWait wait;
    TestLinks links;
    std::unique_ptr<Arena> arena;
    std::unique_ptr<NativeBackend> backend;
  };

  Rank size_ = 0;
  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<Member>> members_;
};

// The layouts of ranks on hosts that every collective is tested with.
inline std::vector<Hosts> layouts() {
  return {
      {{0}},
      {{0, 1}},
      {{0, 1, 2}},
      {{0, 1, 2, 3}},
      {{0}, {1}},
      {{0, 1}, {2, 3}},
      {{0, 2, 4}, {1, 3}},
      {{0}, {1}, {2}},
      {{0, 1}, {2, 3}, {4, 5}},
      {{0, 1}, {2}, {3}, {4, 5}, {6}},
  };
}

inline std::string name_of_layout(const Hosts& hosts) {
  std::string name;
  for (const auto& host : hosts) name += (name.empty() ? "" : "+") + std::to_string(host.size());
  return name;
}

}  // namespace hvd::testing
