// bare_exchange WAY BYTES CALLS: two processes on cores 0 and 1 sum BYTES of float32 in place, with nothing
// around it: no negotiation, no Python, no sleeping. Prints the median microseconds of a call; exits with 3
// where the way can't be had here. What a machine gives to an allreduce among two ranks of one host.
#include <immintrin.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kPiece = std::size_t{256}
                               << 10;  // of one share; a slot holds one of each rank
constexpr std::size_t kSlots = 4;
constexpr std::size_t kTile = 4096;
constexpr std::size_t kVector = 32;
constexpr int kCannotBeHad = 3;

// How the arena is written.
enum class Put { kOrdinary, kStreaming, kDemoted, kPrefetched };

struct Lane {
  alignas(128) std::atomic<std::uint64_t> filled;
  alignas(128) std::atomic<std::uint64_t> reduced;
  alignas(128) std::atomic<std::uint64_t> drained;
  alignas(128) std::atomic<int> process;
  alignas(4096) std::byte slots[kSlots][2][kPiece];
};

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::exit(kCannotBeHad);
}

// Each process spins for the other, so neither may outlive a failure of the other.
void end_with_child(int) {
  int status = 0;
  if (::waitpid(-1, &status, WNOHANG) <= 0 || status == 0) return;
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

pid_t start_other_process() {
  ::signal(SIGCHLD, end_with_child);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) give_up("fork");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it has ended already
  }
  return child;
}

void publish(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  counter.store(value, std::memory_order_release);
}

void wait_for(const std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  while (counter.load(std::memory_order_acquire) < value) _mm_pause();
}

// The four ways to write, for whole vectors.
void put(Put how, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (how == Put::kOrdinary) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (std::size_t i = 0; i < bytes; i += kVector) {
    const __m256i vector = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    auto* const at = reinterpret_cast<__m256i*>(to + i);
    if (how == Put::kStreaming) {
      _mm256_stream_si256(at, vector);
      continue;
    }
    if (how == Put::kPrefetched) __builtin_prefetch(to + i + kTile, 1);
    _mm256_storeu_si256(at, vector);
    // A line goes to the cache that the cores share when it is complete.
    if (how == Put::kDemoted && i % 64 != 0) _cldemote(to + i);
  }
  if (how == Put::kStreaming) _mm_sfence();
}

void sum(std::byte* to, const std::byte* a, const std::byte* b, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kVector) {
    const __m256 x = _mm256_loadu_ps(reinterpret_cast<const float*>(a + i));
    const __m256 y = _mm256_loadu_ps(reinterpret_cast<const float*>(b + i));
    _mm256_storeu_ps(reinterpret_cast<float*>(to + i), _mm256_add_ps(x, y));
  }
}

class Rank {
 public:
  Rank(Lane* lanes, int me, std::byte* tensor, std::size_t bytes)
      : mine_(lanes[me]), other_(lanes[1 - me]), me_(me), tensor_(tensor), bytes_(bytes) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(me, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0) give_up("running on core 0 or 1");
    mine_.process.store(::getpid());
    while (other_.process.load() == 0) _mm_pause();
  }

  void meet() {
    ++pieces_;
    publish(mine_.filled, pieces_);
    publish(mine_.reduced, pieces_);
    wait_for(other_.filled, pieces_);
    publish(mine_.drained, pieces_);
    wait_for(other_.drained, pieces_);
  }

  // As the engine does it: fill piece k with what the other reduces, reduce k - 1, drain k - 2.
  void shares(Put how) {
    const std::size_t half = bytes_ / 2;
    const std::size_t count = (half + kPiece - 1) / kPiece;
    std::byte* const my_half = half_of(me_);
    std::byte* const other_half = half_of(1 - me_);
    const auto length = [&](std::size_t piece) { return std::min(kPiece, half - piece * kPiece); };
    for (std::size_t step = 0; step < count + 2; ++step) {
      if (step < count) {
        const std::uint64_t number = pieces_ + step + 1;
        if (number > kSlots) wait_for(other_.drained, number - kSlots);
        put(how, slot(mine_, number, 1 - me_), other_half + step * kPiece, length(step));
        publish(mine_.filled, number);
      }
      if (step >= 1 && step <= count) {
        const std::uint64_t number = pieces_ + step;
        wait_for(other_.filled, number);
        reduce(how, my_half + (step - 1) * kPiece, slot(other_, number, me_),
               slot(mine_, number, me_), length(step - 1));
        publish(mine_.reduced, number);
      }
      if (step >= 2) {
        const std::uint64_t number = pieces_ + step - 1;
        wait_for(other_.reduced, number);
        std::memcpy(other_half + (step - 2) * kPiece, slot(other_, number, 1 - me_),
                    length(step - 2));
        publish(mine_.drained, number);
      }
    }
    pieces_ += count;
  }

  // Everybody gives all and sums all: half the waits, but all of the input is read twice.
  void whole() {
    const std::size_t piece = 2 * kPiece;
    const std::size_t count = (bytes_ + piece - 1) / piece;
    for (std::size_t step = 0; step <= count; ++step) {
      if (step < count) {
        const std::uint64_t number = pieces_ + step + 1;
        if (number > kSlots) wait_for(other_.drained, number - kSlots);
        std::memcpy(slot(mine_, number, 0), tensor_ + step * piece,
                    std::min(piece, bytes_ - step * piece));
        publish(mine_.filled, number);
      }
      if (step >= 1) {
        const std::uint64_t number = pieces_ + step;
        std::byte* const at = tensor_ + (step - 1) * piece;
        wait_for(other_.filled, number);
        sum(at, at, slot(other_, number, 0), std::min(piece, bytes_ - (step - 1) * piece));
        publish(mine_.drained, number);
      }
    }
    pieces_ += count;
  }

  // No arena: the kernel copies from the other's memory, which lies at the same addresses.
  void kernel_copies() {
    const std::size_t half = bytes_ / 2;
    const std::size_t count = (half + kPiece - 1) / kPiece;
    std::byte* const my_half = half_of(me_);
    std::byte* const other_half = half_of(1 - me_);
    meet();
    for (std::size_t step = 0; step <= count; ++step) {
      if (step < count) {
        const std::size_t begin = step * kPiece;
        const std::size_t length = std::min(kPiece, half - begin);
        fetch(space_.data(), my_half + begin, length);
        sum(my_half + begin, my_half + begin, space_.data(), length);
        publish(mine_.reduced, pieces_ + step + 1);
      }
      if (step >= 1) {
        const std::size_t begin = (step - 1) * kPiece;
        wait_for(other_.reduced, pieces_ + step);
        fetch(other_half + begin, other_half + begin, std::min(kPiece, half - begin));
      }
    }
    pieces_ += count;
    meet();
  }

  // No sum: what memory gives when both copy.
  void copy() { std::memcpy(copy_.data(), tensor_, bytes_); }
  void make_room_to_copy() { copy_.resize(bytes_); }

 private:
  std::byte* half_of(int rank) const {
    return tensor_ + static_cast<std::size_t>(rank) * (bytes_ / 2);
  }

  static std::byte* slot(Lane& lane, std::uint64_t number, int share) {
    return lane.slots[number % kSlots][share];
  }

  static void reduce(Put how, std::byte* mine, const std::byte* other, std::byte* arena,
                     std::size_t bytes) {
    for (std::size_t done = 0; done < bytes; done += kTile) {
      const std::size_t now = std::min(kTile, bytes - done);
      sum(mine + done, mine + done, other + done, now);
      put(how, arena + done, mine + done, now);
    }
  }

  void fetch(std::byte* to, std::byte* from, std::size_t bytes) {
    const iovec here{to, bytes};
    const iovec there{from, bytes};
    if (::process_vm_readv(other_.process.load(), &here, 1, &there, 1, 0) !=
        static_cast<ssize_t>(bytes)) {
      give_up("process_vm_readv");
    }
  }

  Lane& mine_;
  Lane& other_;
  int me_;
  std::byte* tensor_;
  std::size_t bytes_;
  std::uint64_t pieces_ = 0;
  std::vector<std::byte> space_ = std::vector<std::byte>(kPiece);
  std::vector<std::byte> copy_;
};

const std::map<std::string, void (*)(Rank&)> kWays{
    {"arena", [](Rank& rank) { rank.shares(Put::kOrdinary); }},
    {"streaming", [](Rank& rank) { rank.shares(Put::kStreaming); }},
    {"demoted", [](Rank& rank) { rank.shares(Put::kDemoted); }},
    {"prefetched", [](Rank& rank) { rank.shares(Put::kPrefetched); }},
    {"whole", [](Rank& rank) { rank.whole(); }},
    {"kernel", [](Rank& rank) { rank.kernel_copies(); }},
    {"memcpy", [](Rank& rank) { rank.copy(); }},
};

}  // namespace

int main(int argc, char** argv) {
  const auto way = argc == 4 ? kWays.find(argv[1]) : kWays.end();
  const std::size_t bytes = argc == 4 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const int calls = argc == 4 ? std::atoi(argv[3]) : 0;
  if (way == kWays.end() || bytes == 0 || bytes % (2 * kTile) != 0 || calls < 1) {
    std::fputs("usage: bare_exchange WAY BYTES CALLS; BYTES a multiple of 8192\n", stderr);
    return 2;
  }
  const auto map = [](std::size_t size, int sharing) {
    void* const memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) give_up("mmap");
    return memory;
  };
  auto* const lanes = static_cast<Lane*>(map(2 * sizeof(Lane), MAP_SHARED));
  void* const tensor = map(bytes, MAP_PRIVATE);
  ::madvise(tensor, bytes, MADV_HUGEPAGE);  // as NumPy does
  const pid_t child = start_other_process();
  Rank rank(lanes, child == 0 ? 1 : 0, static_cast<std::byte*>(tensor), bytes);

  auto* const numbers = static_cast<float*>(tensor);
  const std::size_t count = bytes / sizeof(float);
  const bool sums = way->first != "memcpy";
  if (!sums) rank.make_room_to_copy();
  std::fill_n(numbers, count, 1.0F);
  rank.meet();
  way->second(rank);
  if (sums && std::any_of(numbers, numbers + count, [](float x) { return x != 2.0F; })) {
    std::fprintf(stderr, "%s: a sum of ones is not 2\n", argv[1]);
    return 1;
  }
  std::fill_n(numbers, count, 0.0F);
  std::vector<double> microseconds;
  for (int call = 0; call < calls; ++call) {
    rank.meet();
    const auto start = std::chrono::steady_clock::now();
    way->second(rank);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    microseconds.push_back(took.count());
  }
  rank.meet();
  if (child == 0) return 0;
  std::ranges::nth_element(microseconds, microseconds.begin() + calls / 2);
  std::printf("%.2f\n", microseconds[static_cast<std::size_t>(calls / 2)]);
  return 0;
}
