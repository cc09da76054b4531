#include "engine/tree.h"

#include <chrono>

#include "transport/tcp_channel.h"

namespace hvd {

namespace {

constexpr std::chrono::microseconds kBellDelay{20};

}  // namespace

struct Tree::Edge {
  Edge(Rank peer, std::unique_ptr<ShmChannel> channel)
      : peer(peer), shm(channel.get()), channel(std::move(channel)), stream(*this->channel) {}
  Edge(Rank peer, std::unique_ptr<TcpChannel> channel)
      : peer(peer), channel(std::move(channel)), stream(*this->channel) {}

  Rank peer;
  ShmChannel* shm = nullptr;  // null: TCP
  std::unique_ptr<Channel> channel;
  MessageStream stream;
  bool unsent = false;                                            // queued since the last flush
  std::optional<std::chrono::steady_clock::time_point> bell_due;  // a bell that is put off
  std::uint64_t bell_position = 0;  // what the peer must have read to need no bell
  bool goodbye = false;             // the peer closes on purpose
  bool lost = false;
  Status error;
};

Tree::Tree(const Topology& topology, Rank parent, const std::vector<Rank>& children,
           const std::map<Rank, std::unique_ptr<Region>>& regions,
           std::map<Rank, Descriptor> sockets, Doorbells& doorbells)
    : doorbells_(doorbells) {
  const auto add = [&](Rank peer, bool is_parent) {
    const auto socket = sockets.find(peer);
    if (socket != sockets.end()) {
      edges_.push_back(std::make_unique<Edge>(
          peer, std::make_unique<TcpChannel>(std::move(socket->second), topology.describe(peer))));
      return;
    }
    // The rings of an edge lie in the region of the child.
    Region& region = *regions.at(is_parent ? topology.rank : peer);
    const ShmRing up(region.to_leader());
    const ShmRing down(region.from_leader());
    edges_.push_back(std::make_unique<Edge>(peer, is_parent
                                                      ? std::make_unique<ShmChannel>(up, down)
                                                      : std::make_unique<ShmChannel>(down, up)));
  };
  if (parent >= 0) {
    add(parent, true);
    parent_ = edges_.front().get();
  }
  for (const Rank child : children) add(child, false);
}

Tree::~Tree() = default;

void Tree::send(Edge& edge, const Message& message) {
  if (edge.lost) return;
  Status status = edge.stream.queue(message);
  if (!status.is_ok()) lose(edge, std::move(status));
  edge.unsent = true;
  ++messages_sent_;
}

void Tree::lose(Edge& edge, Status why) {
  edge.error = std::move(why);
  edge.lost = true;
}

void Tree::send_up(const Message& message) { send(*parent_, message); }

void Tree::send_down(const Message& message) {
  for (const auto& edge : edges_) {
    if (edge.get() != parent_) send(*edge, message);
  }
}

void Tree::send_everywhere(const Message& message) {
  for (const auto& edge : edges_) send(*edge, message);
}

void Tree::flush(bool spinning) {
  bool backlog = false;
  for (const auto& edge : edges_) {
    if (edge->lost || (!edge->unsent && !edge->stream.has_backlog())) continue;
    edge->unsent = false;
    Status status = edge->stream.flush();
    if (!status.is_ok()) lose(*edge, std::move(status));
    backlog |= !edge->lost && edge->stream.has_backlog();
    if (edge->shm == nullptr) continue;
    if (!spinning) {
      doorbells_.ring_if_asleep(edge->peer);
    } else if (!edge->bell_due) {
      edge->bell_due = std::chrono::steady_clock::now() + kBellDelay;
      put_off_.fetch_add(1, std::memory_order_relaxed);
    }
    edge->bell_position = edge->shm->outgoing().written();
  }
  backlog_.store(backlog, std::memory_order_relaxed);
}

void Tree::ring_due(bool spinning) {
  if (!bells_put_off()) return;
  const auto now = std::chrono::steady_clock::now();
  for (const auto& edge : edges_) {
    if (!edge->bell_due) continue;
    const bool was_read = edge->shm->outgoing().has_read(edge->bell_position);
    if (!was_read && spinning && now < *edge->bell_due) continue;
    edge->bell_due.reset();
    put_off_.fetch_sub(1, std::memory_order_relaxed);
    if (!was_read) doorbells_.ring_if_asleep(edge->peer);
  }
}

void Tree::receive(const std::function<void(Rank, Message&&)>& handle) {
  for (const auto& edge : edges_) {
    if (edge->lost) continue;
    if (edge->shm != nullptr && !edge->shm->readable()) continue;
    for (;;) {
      std::optional<Message> message;
      Status status = edge->stream.receive(message);
      if (!message) {
        if (!status.is_ok()) lose(*edge, std::move(status));
        break;
      }
      if (std::holds_alternative<GoodbyeMessage>(*message)) {
        edge->goodbye = true;
      } else {
        handle(edge->peer, std::move(*message));
      }
    }
    if (edge->shm != nullptr && edge->shm->take_writer_waits()) {
      doorbells_.ring_if_asleep(edge->peer);
    }
  }
}

std::optional<std::pair<Rank, Status>> Tree::take_lost_edge() {
  for (const auto& edge : edges_) {
    if (!edge->lost || edge->error.is_ok()) continue;
    Status error = std::exchange(edge->error, Status::ok());
    if (!edge->goodbye) return std::pair{edge->peer, std::move(error)};
  }
  return std::nullopt;
}

bool Tree::neighbours_left() const {
  for (const auto& edge : edges_) {
    if (edge->lost) continue;
    if (edge->shm == nullptr ? !edge->goodbye : edge->stream.has_backlog()) return false;
  }
  return true;
}

bool Tree::readable() const {
  for (const auto& edge : edges_) {
    if (edge->shm != nullptr && edge->shm->readable()) return true;
  }
  return false;
}

std::vector<int> Tree::descriptors() const {
  std::vector<int> descriptors;
  for (const auto& edge : edges_) {
    if (edge->shm == nullptr) descriptors.push_back(edge->channel->descriptor());
  }
  return descriptors;
}

}  // namespace hvd
