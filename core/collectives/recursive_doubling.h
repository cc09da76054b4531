// Allreduce of few bytes between hosts in log2(N) exchanges.
#pragma once

#include "collectives/ring.h"

namespace hvd {

// Reduces the outputs of `view` over the ranks of `ring` (whose order counts, not its neighbours),
// in place. Both sides of an exchange combine in host order, so all ranks get equal bits. When N is
// no power of two, the last ranks first add what they have to the first ones, and get the result
// from them.
Status recursive_doubling(const Ring& ring, const View& view, const Reduction& reduction);

}  // namespace hvd
