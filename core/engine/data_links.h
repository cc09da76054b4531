// DataLinks: the data channels to ranks of other hosts. The core does not dial: it asks, and Python's
// connection thread answers with a connected, authenticated socket.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/config.h"
#include "transport/links.h"
#include "transport/tcp_channel.h"
#include "transport/wait_control.h"

namespace hvd {

class DataLinks final : public Links {
 public:
  DataLinks(const Topology& topology, WaitControl& wait) : topology_(topology), wait_(wait) {}

  Channel* data_channel(Rank peer) override;
  Status failure() const override;

  // The next peer that this rank must dial (it is the lower rank of the pair); blocks. nullopt once
  // stopped.
  std::optional<Rank> next_request();
  void provide(Rank peer, Descriptor socket);
  void fail(Rank peer, const std::string& text);
  void close_in_child();  // after fork: closes this process's copies
  void stop(Status why);  // wakes everybody who waits here

 private:
  const Topology& topology_;
  WaitControl& wait_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Rank, std::unique_ptr<TcpChannel>> channels_;
  std::deque<Rank> requests_;
  std::map<Rank, bool> requested_;
  std::optional<Status> stopped_;
};

}  // namespace hvd
