// Direct exchange between this rank and ranks of other hosts.
#pragma once

#include <span>

#include "base/status.h"
#include "collectives/segments.h"
#include "transport/channel.h"
#include "transport/wait_control.h"

namespace hvd {

// Sends the inputs of outgoing[i] over channels[i] and receives into the outputs of incoming[i],
// all at once.
Status pairwise_exchange(std::span<Channel* const> channels, std::span<const View> outgoing,
                         std::span<const View> incoming, WaitControl& wait);

}  // namespace hvd
