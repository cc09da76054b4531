// Peers: the channels to the ranks of other hosts with which one algorithm works.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "transport/links.h"

namespace hvd {

// Connects to all `peers`; channels[i] leads to peers[i]. Both ends of every pair must call it. No
// set of ranks can wait for each other in a circle, because everybody asks for its pairs in one
// global order.
Status connect_peers(Links& links, Rank me, std::span<const Rank> peers,
                     std::vector<Channel*>& channels);

}  // namespace hvd
