#include "engine/data_links.h"

namespace hvd {

Channel* DataLinks::data_channel(Rank peer) {
  std::unique_lock lock(mutex_);
  const auto known = channels_.find(peer);
  if (known != channels_.end()) return known->second.get();
  if (topology_.rank < peer && !requested_[peer]) {
    requested_[peer] = true;
    requests_.push_back(peer);
    changed_.notify_all();
  }
  lock.unlock();
  wait_.about_to_sleep();
  lock.lock();
  changed_.wait(lock, [&] { return stopped_ || channels_.contains(peer); });
  return stopped_ ? nullptr : channels_.at(peer).get();
}

Status DataLinks::failure() const {
  const std::lock_guard lock(mutex_);
  return stopped_.value_or(Status::ok());
}

std::optional<Rank> DataLinks::next_request() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || !requests_.empty(); });
  if (stopped_) return std::nullopt;
  const Rank peer = requests_.front();
  requests_.pop_front();
  return peer;
}

void DataLinks::provide(Rank peer, Descriptor socket) {
  const std::lock_guard lock(mutex_);
  channels_.try_emplace(peer,
                        std::make_unique<TcpChannel>(std::move(socket), topology_.describe(peer)));
  changed_.notify_all();
}

void DataLinks::fail(Rank peer, const std::string& text) {
  stop(Status::aborted("No data connection from rank " + std::to_string(topology_.rank) +
                       " to rank " + std::to_string(peer) + " on host " +
                       topology_.host_name_of(peer) + ": " + text));
}

void DataLinks::close_in_child() {
  // No lock: the thread that may have held it does not exist in the child.
  for (const auto& [peer, channel] : channels_) ::close(channel->descriptor());
}

void DataLinks::stop(Status why) {
  const std::lock_guard lock(mutex_);
  if (!stopped_) stopped_ = std::move(why);
  changed_.notify_all();
}

}  // namespace hvd
