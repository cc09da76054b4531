// Pairwise exchange: two flows per peer.
#include "collectives/pairwise.h"

#include <deque>
#include <vector>

#include "collectives/flow.h"

namespace hvd {

Status pairwise_exchange(std::span<Channel* const> channels, std::span<const View> outgoing,
                         std::span<const View> incoming, WaitControl& wait) {
  std::deque<SendFlow> sends;
  std::deque<ReceiveFlow> receives;
  std::vector<Flow*> flows;
  for (std::size_t i = 0; i < channels.size(); ++i) {
    flows.push_back(&sends.emplace_back(*channels[i], outgoing[i]));
    flows.push_back(&receives.emplace_back(*channels[i], incoming[i]));
  }
  return drive(flows, wait);
}

}  // namespace hvd
