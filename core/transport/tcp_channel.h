// TcpChannel: a Channel over a connected, authenticated TCP socket (any stream socket works).
#pragma once

#include "base/descriptor.h"
#include "transport/channel.h"

namespace hvd {

class TcpChannel final : public Channel {
 public:
  // Takes ownership of `socket`, a connected stream socket, and makes it non-blocking. `peer` is for
  // messages: "Rank 3 on host b".
  TcpChannel(Descriptor socket, std::string peer);

  std::size_t try_send(std::span<const iovec> pieces) override;
  std::size_t try_receive(std::span<std::byte> buffer) override;
  Status status() const override { return status_; }
  int descriptor() const override { return socket_.get(); }
  std::string_view kind() const override { return "tcp"; }

 private:
  void fail(const std::string& what);

  Descriptor socket_;
  std::string peer_;
  Status status_;
};

}  // namespace hvd
