#include "transport/tcp_channel.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace hvd {

namespace {

// A host that falls silent (power, cable) sends no end of stream: the kernel probes for it, so an idle
// job exchanges no messages of ours and still learns of the loss.
constexpr int kProbeAfterSeconds = 5;
constexpr int kProbeEverySeconds = 2;
constexpr int kProbes = 3;
constexpr unsigned kUnansweredMilliseconds = 8'000;

void set_option(int fd, int level, int option, int value) {
  // A kernel that lacks an option, or a Unix socket, works without it.
  (void)::setsockopt(fd, level, option, &value, sizeof value);
}

constexpr std::size_t kMaxPieces = 64;

}  // namespace

TcpChannel::TcpChannel(Descriptor socket, std::string peer)
    : socket_(std::move(socket)), peer_(std::move(peer)) {
  const int fd = socket_.get();
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeEverySeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnansweredMilliseconds);
}

std::size_t TcpChannel::try_send(std::span<const iovec> pieces) {
  if (!status_.is_ok()) return 0;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = std::min(pieces.size(), kMaxPieces);
  for (;;) {
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) fail(std::strerror(errno));
    return 0;
  }
}

std::size_t TcpChannel::try_receive(std::span<std::byte> buffer) {
  if (!status_.is_ok() || buffer.empty()) return 0;
  for (;;) {
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) {
      fail("its connection closed");
      return 0;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) fail(std::strerror(errno));
    return 0;
  }
}

void TcpChannel::fail(const std::string& what) {
  status_ =
      Status::aborted(peer_ + " has died or cannot be reached: " + what +
                      ". See that rank's output for the reason; this job cannot go on without it.");
}

}  // namespace hvd
