// One suite for every kind of channel: ordered bytes, no blocking, the peer's end.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

#include "testing.h"
#include "transport/memory_channel.h"
#include "transport/shm_ring.h"
#include "transport/tcp_channel.h"

using namespace hvd;

namespace {

// Two connected ends of one kind, and how one of them is closed.
struct Ends {
  std::unique_ptr<Channel> a;
  std::unique_ptr<Channel> b;
  std::shared_ptr<void> memory;  // that they lie in
  std::function<void()> close_a;
};

Ends tcp_ends() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) hvd::testing::stop_test();
  Ends ends;
  ends.a = std::make_unique<TcpChannel>(Descriptor(pair[0]), "a");
  ends.b = std::make_unique<TcpChannel>(Descriptor(pair[1]), "b");
  return ends;
}

Ends shm_ends() {
  constexpr std::size_t kBytes = 2 * ((kShmRingBytes + 127) / 128 * 128);
  std::shared_ptr<void> memory(std::aligned_alloc(128, kBytes), std::free);
  std::memset(memory.get(), 0, kBytes);
  auto* bytes = static_cast<std::byte*>(memory.get());
  const ShmRing up({bytes, kShmRingBytes});
  const ShmRing down({bytes + kBytes / 2, kShmRingBytes});
  Ends ends;
  ends.a = std::make_unique<ShmChannel>(up, down);
  ends.b = std::make_unique<ShmChannel>(down, up);
  ends.memory = std::move(memory);
  return ends;
}

Ends memory_ends() {
  auto [a, b] = MemoryChannel::make_pair(4096);
  Ends ends;
  ends.a = std::move(a);
  ends.b = std::move(b);
  return ends;
}

std::vector<std::byte> pattern(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

std::size_t send_from(Channel& channel, std::span<const std::byte> bytes) {
  const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return channel.try_send({&piece, 1});
}

void for_each_kind(const std::function<void(Ends)>& body) {
  SUBCASE("tcp") { body(tcp_ends()); }
  SUBCASE("shm") { body(shm_ends()); }
  SUBCASE("memory") { body(memory_ends()); }
}

}  // namespace

TEST_CASE("nothing is there before anything was sent") {
  for_each_kind([](Ends ends) {
    std::byte buffer[16];
    CHECK(ends.b->try_receive(buffer) == 0);
    CHECK(ends.b->status().is_ok());
  });
}

TEST_CASE("pieces arrive in order as one stream of bytes") {
  for_each_kind([](Ends ends) {
    const auto bytes = pattern(100);
    const iovec pieces[] = {{const_cast<std::byte*>(bytes.data()), 10},
                            {const_cast<std::byte*>(bytes.data()) + 10, 0},
                            {const_cast<std::byte*>(bytes.data()) + 10, 90}};
    CHECK(ends.a->try_send(pieces) == 100);
    std::vector<std::byte> received(200);
    CHECK(ends.b->try_receive(received) == 100);
    received.resize(100);
    CHECK(received == bytes);
  });
}

TEST_CASE("a full channel takes what fits, and a million bytes come through in both directions") {
  for_each_kind([](Ends ends) {
    const auto bytes = pattern(1'000'003);
    const auto exchange = [&](Channel& channel) {
      std::vector<std::byte> received(bytes.size());
      std::size_t sent = 0;
      std::size_t got = 0;
      while (sent < bytes.size() || got < bytes.size()) {
        sent += send_from(channel, std::span(bytes).subspan(sent));
        got += channel.try_receive(std::span(received).subspan(got));
        std::this_thread::yield();
      }
      CHECK(received == bytes);
    };
    std::thread other([&] { exchange(*ends.b); });
    exchange(*ends.a);
    other.join();
  });
}

TEST_CASE("bytes sent before the close stay readable, then the end is seen") {
  const auto check = [](std::unique_ptr<Channel> a, std::unique_ptr<Channel> b) {
    const auto bytes = pattern(5);
    CHECK(send_from(*a, bytes) == 5);
    a.reset();
    std::byte buffer[16];
    CHECK(b->try_receive(buffer) == 5);
    CHECK(b->try_receive(buffer) == 0);
    CHECK_FALSE(b->status().is_ok());
    CHECK(send_from(*b, bytes) == 0);
  };
  SUBCASE("tcp") {
    Ends ends = tcp_ends();
    check(std::move(ends.a), std::move(ends.b));
  }
  SUBCASE("memory") {
    Ends ends = memory_ends();
    check(std::move(ends.a), std::move(ends.b));
  }
}

TEST_CASE("a writer that found the ring full is remembered once") {
  Ends ends = shm_ends();
  const auto bytes = pattern(kShmRingCapacity + 1);
  CHECK(send_from(*ends.a, bytes) == kShmRingCapacity);
  auto& reader = static_cast<ShmChannel&>(*ends.b);
  std::byte buffer[64];
  CHECK(reader.try_receive(buffer) == 64);
  CHECK(reader.take_writer_waits());
  CHECK_FALSE(reader.take_writer_waits());
}
