// Fuzz target of the wire decoder and of the framing. Two ways to build it:
//   clang++ -fsanitize=fuzzer,address,undefined ...   explores; start it with tests/core/corpus
//   g++ -DHVD_FUZZ_STANDALONE ...                     runs the files given on the command line once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "engine/framing.h"
#include "transport/memory_channel.h"
#include "wire/codec.h"

namespace {

void demand(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz_codec: %s\n", what);
  std::abort();
}

// What decodes has exactly one encoding: the input.
void check_codec(std::span<const std::byte> input) {
  hvd::Message message;
  if (!hvd::decode(input, message).is_ok()) return;
  const auto again = hvd::encode(message);
  demand(std::equal(input.begin(), input.end(), again.begin(), again.end()),
         "a decoded message has another encoding");
}

// The input as a stream of bytes from a peer that then closes: ends in an error or at the end of
// it.
void check_framing(std::span<const std::byte> input) {
  auto [peer, own] = hvd::MemoryChannel::make_pair(input.size());
  const iovec piece{const_cast<std::byte*>(input.data()), input.size()};
  peer->try_send({&piece, 1});
  peer->close();
  hvd::MessageStream stream(*own);
  std::optional<hvd::Message> message;
  std::size_t messages = 0;
  while (stream.receive(message).is_ok()) {
    demand(message.has_value(), "a closed stream gave neither a message nor an error");
    demand(++messages <= input.size(), "more messages than bytes");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span input(reinterpret_cast<const std::byte*>(data), size);
  check_codec(input);
  check_framing(input);
  return 0;
}

#ifdef HVD_FUZZ_STANDALONE
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    demand(file.good(), "a corpus file can't be read");
    const std::string bytes((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("fuzz_codec: %d files, no fault\n", argc - 1);
  return 0;
}
#endif
