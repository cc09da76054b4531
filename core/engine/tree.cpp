#include "engine/tree.h"

#include <chrono>
#include <utility>

#include "transport/tcp_channel.h"

namespace hvd {

namespace {

constexpr std::chrono::microseconds kBellDelay{20};
constexpr std::chrono::milliseconds kPatientBellDelay{20};

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
  bool pressing = false;                                          // some of that
  std::optional<std::chrono::steady_clock::time_point> bell_due;  // a bell that is put off
  bool bell_pressing = false;       // it is for a spinning thread to ring
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

void Tree::send(Edge& edge, const Message& message, bool patient) {
  if (edge.lost) return;
  Status status = edge.stream.queue(message);
  if (!status.is_ok()) lose(edge, std::move(status));
  edge.unsent = true;
  edge.pressing = edge.pressing || !patient;
  ++messages_sent_;
}

void Tree::lose(Edge& edge, Status why) {
  edge.error = std::move(why);
  edge.lost = true;
}

void Tree::send_up(const Message& message, bool patient) { send(*parent_, message, patient); }

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
    const bool left_over = !edge->lost && edge->stream.has_backlog();
    const bool pressing = std::exchange(edge->pressing, false) || left_over;
    backlog |= left_over;
    if (edge->shm == nullptr) continue;
    edge->bell_position = edge->shm->outgoing().written();
    if (pressing && !spinning) {
      doorbells_.ring_if_asleep(edge->peer);
    } else {
      put_off_bell(*edge, pressing);
    }
  }
  backlog_.store(backlog, std::memory_order_relaxed);
}

// A bell that is put off already comes at its time, or sooner if there is something pressing now.
void Tree::put_off_bell(Edge& edge, bool pressing) {
  if (edge.bell_due && (edge.bell_pressing || !pressing)) return;
  if (!edge.bell_due) put_off_.fetch_add(1, std::memory_order_relaxed);
  edge.bell_due = std::chrono::steady_clock::now() + (pressing ? kBellDelay : kPatientBellDelay);
  edge.bell_pressing = pressing;
}

void Tree::ring_due(bool spinning) {
  if (!bells_put_off()) return;
  const auto now = std::chrono::steady_clock::now();
  for (const auto& edge : edges_) {
    if (!edge->bell_due) continue;
    const bool was_read = edge->shm->outgoing().has_read(edge->bell_position);
    const bool may_wait = spinning || !edge->bell_pressing;
    if (!was_read && may_wait && now < *edge->bell_due) continue;
    edge->bell_due.reset();
    put_off_.fetch_sub(1, std::memory_order_relaxed);
    if (!was_read) doorbells_.ring_if_asleep(edge->peer);
  }
}

std::optional<std::chrono::steady_clock::time_point> Tree::next_bell() const {
  std::optional<std::chrono::steady_clock::time_point> next;
  for (const auto& edge : edges_) {
    if (!edge->bell_due || edge->bell_pressing) continue;
    if (!next || *edge->bell_due < *next) next = edge->bell_due;
  }
  return next;
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
