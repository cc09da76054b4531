// Tree: this rank's edges of the negotiation tree, to its parent and its children, over shared memory
// or TCP. Used under the negotiation role only.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/config.h"
#include "engine/doorbells.h"
#include "engine/framing.h"
#include "transport/channel.h"
#include "transport/shm_ring.h"

namespace hvd {

class Tree {
 public:
  // Edges to ranks of this host run over the regions; the others over `sockets`.
  Tree(const Topology& topology, Rank parent, const std::vector<Rank>& children,
       const std::map<Rank, std::unique_ptr<Region>>& regions, std::map<Rank, Descriptor> sockets,
       Doorbells& doorbells);
  ~Tree();

  bool is_root() const { return parent_ == nullptr; }
  // `patient`: it will do if the parent reads it when it looks the next time, or a little later.
  void send_up(const Message& message, bool patient = false);
  void send_down(const Message& message);
  void send_everywhere(const Message& message);
  // Writes what fits, and wakes the peers that sleep. `spinning`: the calling thread is going to look
  // again within microseconds. Then a peer gets a little time to come and read by itself, because in a
  // sequence of blocking calls it is about to: that saves a system call here and a switch of threads
  // there. `ring_due` must follow.
  void flush(bool spinning);
  // Rings the bells that were put off: those whose time has come and, unless `spinning`, all that were put
  // off by a spinning thread.
  void ring_due(bool spinning);
  bool bells_put_off() const { return put_off_.load(std::memory_order_relaxed) > 0; }
  // When `ring_due` should be called for what was sent patient; nullopt: never.
  std::optional<std::chrono::steady_clock::time_point> next_bell() const;

  // Calls `handle(peer, message)` for each message that has arrived.
  void receive(const std::function<void(Rank, Message&&)>& handle);
  // An edge that failed without a goodbye, once: its peer and why.
  std::optional<std::pair<Rank, Status>> take_lost_edge();
  // Bytes are left that a full edge did not take.
  bool has_backlog() const { return backlog_.load(std::memory_order_relaxed); }
  // True once every TCP neighbour has said goodbye or is lost, and the others have got everything.
  bool neighbours_left() const;

  // Bytes wait on an edge of shared memory (TCP edges have descriptors).
  bool readable() const;
  std::vector<int> descriptors() const;
  std::uint64_t messages_sent() const { return messages_sent_; }

 private:
  struct Edge;

  void send(Edge& edge, const Message& message, bool patient = false);
  void put_off_bell(Edge& edge, bool pressing);
  static void lose(Edge& edge, Status why);

  Doorbells& doorbells_;
  std::vector<std::unique_ptr<Edge>> edges_;  // the parent's, if any, is the first
  Edge* parent_ = nullptr;
  std::atomic<int> put_off_{0};  // edges with a bell that is put off
  std::atomic<bool> backlog_{false};
  std::atomic<std::uint64_t> messages_sent_{0};
};

}  // namespace hvd
