// A whole job in one process, for tests: every rank is an engine of its own, with real shared memory,
// event descriptors and sockets, on as many declared hosts as the test wants.
#pragma once

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace hvd::test {

class EngineWorld {
 public:
  // `local_sizes`: number of ranks of each host; `cores`: that each host is said to have.
  explicit EngineWorld(std::vector<int> local_sizes, Config config = {}, int cores = 1 << 10)
      : config_(config), cores_(cores) {
    Rank next = 0;
    for (const int local_size : local_sizes) {
      std::vector<Rank> ranks(static_cast<std::size_t>(local_size));
      std::iota(ranks.begin(), ranks.end(), next);
      next += local_size;
      hosts_.push_back(ranks);
    }
    size_ = next;
    start();
  }

  ~EngineWorld() {
    // The connection threads hold on until the links are stopped, which `stop` does.
    for_each_rank([&](Rank rank) { engines_[static_cast<std::size_t>(rank)]->stop(); });
    for (std::thread& thread : connectors_) thread.join();
  }

  Rank size() const { return size_; }
  Engine& engine(Rank rank) { return *engines_[static_cast<std::size_t>(rank)]; }

  // Runs `body(rank)` on a thread for each rank and joins them.
  void for_each_rank(const std::function<void(Rank)>& body) {
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < size_; ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  static Request allreduce_request(const std::string& name, std::int64_t count) {
    Request request;
    request.name = name;
    request.shape = {count};
    return request;
  }

  // Submits one float32 allreduce and returns its handle, or null with `error` set.
  std::shared_ptr<Handle> allreduce(Rank rank, Request request, const std::vector<float>& input,
                                    std::vector<float>& output, bool urgent = true,
                                    std::string* error = nullptr) {
    Submission submission;
    submission.urgent = urgent;
    WorkTensor tensor;
    tensor.input = input.data();
    tensor.output = output.data();
    tensor.shape = request.shape;
    submission.requests.push_back(std::move(request));
    submission.tensors.push_back(std::move(tensor));
    return submit(rank, std::move(submission), error);
  }

  std::shared_ptr<Handle> submit(Rank rank, Submission submission, std::string* error = nullptr) {
    std::shared_ptr<Handle> handle;
    const Status status = engine(rank).submit(std::move(submission), handle);
    if (!status.is_ok() && error != nullptr) *error = status.text();
    return handle;
  }

  Status wait(Rank rank, Handle& handle) {
    while (!engine(rank).wait(handle)) {
    }
    return handle.status();
  }

 private:
  std::size_t host_of(Rank rank) const {
    std::size_t host = 0;
    while (hosts_[host].back() < rank) ++host;
    return host;
  }

  void start() {
    std::vector<EngineParts> parts(static_cast<std::size_t>(size_));
    for (Rank rank = 0; rank < size_; ++rank) {
      EngineParts& mine = parts[static_cast<std::size_t>(rank)];
      mine.config = config_;
      mine.topology.rank = rank;
      mine.topology.size = size_;
      mine.topology.hosts = hosts_;
      for (std::size_t host = 0; host < hosts_.size(); ++host) {
        mine.topology.host_names.push_back("host" + std::to_string(host));
      }
      mine.topology.cores = cores_;
    }
    const std::size_t bytes = Region::bytes_needed(config_);
    for (const auto& ranks : hosts_) {
      for (const Rank owner : ranks) {
        const int memory = ::memfd_create("region", MFD_CLOEXEC);
        if (::ftruncate(memory, static_cast<off_t>(bytes)) != 0) std::abort();
        const int bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        for (const Rank peer : ranks) {
          parts[static_cast<std::size_t>(peer)].regions[owner] = ::dup(memory);
          parts[static_cast<std::size_t>(peer)].doorbells[owner] = ::dup(bell);
        }
        ::close(memory);
        ::close(bell);
        for (const Rank peer : ranks) {
          if (peer > owner) connect(parts, owner, peer, &EngineParts::host_sockets);
        }
        if (owner != ranks.front()) link(parts, ranks.front(), owner);
      }
    }
    for (std::size_t host = 1; host < hosts_.size(); ++host) {
      const Rank parent = hosts_[(host - 1) / kTreeFanOut].front();
      const Rank child = hosts_[host].front();
      link(parts, parent, child);
      connect(parts, parent, child, &EngineParts::tree_sockets);
    }
    for (EngineParts& mine : parts) engines_.push_back(std::make_unique<Engine>(std::move(mine)));
    for (Rank rank = 0; rank < size_; ++rank) {
      connectors_.emplace_back([this, rank] { answer_connection_requests(rank); });
    }
  }

  static void link(std::vector<EngineParts>& parts, Rank parent, Rank child) {
    parts[static_cast<std::size_t>(parent)].children.push_back(child);
    parts[static_cast<std::size_t>(child)].parent = parent;
  }

  static void connect(std::vector<EngineParts>& parts, Rank a, Rank b,
                      std::map<Rank, int> EngineParts::* sockets) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) std::abort();
    (parts[static_cast<std::size_t>(a)].*sockets)[b] = pair[0];
    (parts[static_cast<std::size_t>(b)].*sockets)[a] = pair[1];
  }

  void answer_connection_requests(Rank rank) {
    while (const std::optional<Rank> peer = engine(rank).links().next_request()) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) std::abort();
      engine(rank).links().provide(*peer, Descriptor(pair[0]));
      engine(*peer).links().provide(rank, Descriptor(pair[1]));
    }
  }

  Config config_;
  int cores_;
  std::vector<std::vector<Rank>> hosts_;
  Rank size_ = 0;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::thread> connectors_;
};

}  // namespace hvd::test
