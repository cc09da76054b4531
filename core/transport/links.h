// Links: data channels to ranks of other hosts, connected on first use by both ends.
#pragma once

#include "base/types.h"
#include "transport/channel.h"

namespace hvd {

class Links {
 public:
  virtual ~Links() = default;
  // The channel to `peer`, which is executing the same response and asks for it too. Blocks until it
  // is connected; nullptr when the job was aborted or the connection failed (`failure` says why).
  virtual Channel* data_channel(Rank peer) = 0;
  virtual Status failure() const = 0;
};

}  // namespace hvd
