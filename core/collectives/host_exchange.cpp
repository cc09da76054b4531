// Streams through the arena, a slot at a time: a member's bytes are its header followed by its
// data, so that small exchanges need one piece and one synchronisation although nobody knows the
// sizes before.
#include "collectives/host_exchange.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "collectives/copies.h"

namespace hvd {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPieceBytes = std::size_t{256} << 10;
constexpr std::size_t kLineBytes = 64;
constexpr std::uint32_t kNoOpinion = 2;  // as a hint; others are of type Store

Status aborted() {
  return Status::aborted("The job was aborted while ranks of this host exchanged data.");
}

struct Range {
  std::size_t begin;
  std::size_t end;
  std::size_t bytes() const { return end - begin; }
};

Range overlap(Range a, Range b) {
  const std::size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

class StreamExchange {
 public:
  StreamExchange(ArenaTurn& turn, std::span<const std::byte> header, const View& stream,
                 StorePolicy& stores, const MakePlan& make_plan)
      : turn_(turn),
        header_(header),
        stream_(stream),
        stores_(stores),
        make_plan_(make_plan),
        piece_bytes_(std::min(turn.slot_bytes(), kPieceBytes)),
        data_begin_((header.size() + kLineBytes - 1) / kLineBytes * kLineBytes),
        headers_(turn.members(), std::vector<std::byte>(header.size())) {
    headers_[turn.me()].assign(header.begin(), header.end());
    if (stream_.bytes < StorePolicy::kFewBytes) return;
    decides_ = turn.me() == 0;
    store_ = decides_ ? stores_.choose(stream_.bytes) : stores_.best(stream_.bytes);
  }

  Status run() {
    turn_.set_piece_bytes(piece_bytes_);
    start_ = Clock::now();
    turn_.set_hint(decides_ ? static_cast<std::uint32_t>(store_) : kNoOpinion);
    if (header_.empty()) {
      if (Status status = plan(); !status.is_ok()) return status;
    }
    // Filling is one piece ahead of reading, so that the ranks overlap.
    for (std::size_t step = 0; !planned_ || step <= pieces_; ++step) {
      if (!turn_.fits(step + 1))
        return Status::invalid_argument("The tensors are too large for one response.");
      if (holds(turn_.me(), step) && !fill(step)) return aborted();
      if (step == 0) continue;
      if (Status status = read(step - 1); !status.is_ok()) return status;
    }
    if (decides_) {
      const std::chrono::duration<double, std::nano> time = Clock::now() - start_;
      stores_.record(stream_.bytes, store_, stream_.bytes, time.count());
    }
    turn_.next_phase(pieces_);
    return Status::ok();
  }

 private:
  // The first member decides how all write, because only all together feel a difference; its word
  // came with its first piece. Where it has little to send itself, as in a broadcast from another
  // root, everybody decides alone.
  void follow_first_member() {
    if (turn_.me() == 0 || stream_.bytes < StorePolicy::kFewBytes) return;
    const std::uint32_t hint = holds(0, 0) ? turn_.hint(0) : kNoOpinion;
    if (hint == kNoOpinion) {
      decides_ = true;
      return;
    }
    store_ = static_cast<Store>(hint);
    stores_.follow(stream_.bytes, store_);
  }

  Range piece_range(std::size_t piece) const {
    return {piece * piece_bytes_, (piece + 1) * piece_bytes_};
  }
  Range data_range(std::size_t member) const {
    const std::size_t bytes = member == turn_.me() ? stream_.bytes : plan_.stream_bytes[member];
    return {data_begin_, data_begin_ + bytes};
  }
  // Whether a member puts anything into this piece; before the plan is known only headers are asked
  // for.
  bool holds(std::size_t member, std::size_t piece) const {
    const std::size_t begin = piece_range(piece).begin;
    if (member == turn_.me() || planned_) return begin < data_range(member).end;
    return begin < header_.size();
  }

  bool fill(std::size_t piece) {
    if (!turn_.claim(piece)) return false;
    std::byte* const slot = turn_.my_slot(piece);
    const Range here = piece_range(piece);
    const Range head = overlap(here, {0, header_.size()});
    if (head.bytes() > 0) std::memcpy(slot, header_.data() + head.begin, head.bytes());
    const Range data = overlap(here, data_range(turn_.me()));
    if (data.bytes() > 0) {
      gather(slot + (data.begin - here.begin), stream_.part(data.begin - data_begin_, data.bytes()),
             store_);
    }
    if (store_ == Store::kStreaming) finish_streaming();
    turn_.publish(Counter::kFilled, piece);
    return true;
  }

  Status read(std::size_t piece) {
    const auto before = piece == 0 ? Clock::now() : Clock::time_point{};
    for (std::size_t member = 0; member < turn_.members(); ++member) {
      if (member == turn_.me() || !holds(member, piece)) continue;
      if (!turn_.wait(member, Counter::kFilled, piece)) return aborted();
      read_header(member, piece);
    }
    if (piece == 0) {
      start_ += Clock::now() - before;  // others were late, which tells nothing about stores
      follow_first_member();
    }
    if (!planned_ && piece_range(piece).end >= header_.size()) {
      if (Status status = plan(); !status.is_ok()) return status;
    }
    if (planned_) {
      for (std::size_t member = 0; member < turn_.members(); ++member) {
        if (member == turn_.me() || !holds(member, piece)) continue;
        // A member without a header here was not waited for above when the plan was not yet known.
        if (!turn_.wait(member, Counter::kFilled, piece)) return aborted();
        read_data(member, piece);
      }
    }
    turn_.publish(Counter::kDrained, piece);
    return Status::ok();
  }

  void read_header(std::size_t member, std::size_t piece) {
    const Range here = piece_range(piece);
    const Range head = overlap(here, {0, header_.size()});
    if (head.bytes() == 0) return;
    std::memcpy(headers_[member].data() + head.begin, turn_.slot(member, piece), head.bytes());
  }

  void read_data(std::size_t member, std::size_t piece) {
    const Landing& landing = plan_.landings[member];
    const Range here = piece_range(piece);
    const std::size_t first = data_begin_ + landing.begin;
    const Range data = overlap(here, {first, first + landing.to.bytes});
    if (data.bytes() == 0) return;
    scatter(landing.to.part(data.begin - first, data.bytes()),
            turn_.slot(member, piece) + (data.begin - here.begin),
            output_store_for(landing.to.bytes));
  }

  Status plan() {
    if (Status status = make_plan_(headers_, plan_); !status.is_ok()) return status;
    planned_ = true;
    std::size_t longest = 0;
    for (std::size_t member = 0; member < turn_.members(); ++member) {
      longest = std::max(longest, data_range(member).end);
    }
    pieces_ = (longest + piece_bytes_ - 1) / piece_bytes_;
    return Status::ok();
  }

  ArenaTurn& turn_;
  std::span<const std::byte> header_;
  View stream_;
  StorePolicy& stores_;
  Store store_ = Store::kOrdinary;
  bool decides_ = false;  // and measures
  Clock::time_point start_;
  const MakePlan& make_plan_;
  std::size_t piece_bytes_;
  std::size_t data_begin_;  // in the stream: copies to odd addresses are slow
  std::vector<std::vector<std::byte>> headers_;
  ExchangePlan plan_;
  bool planned_ = false;
  std::size_t pieces_ = 0;
};

}  // namespace

Status host_exchange(ArenaTurn& turn, std::span<const std::byte> header, const View& stream,
                     StorePolicy& stores, const MakePlan& make_plan) {
  return StreamExchange(turn, header, stream, stores, make_plan).run();
}

}  // namespace hvd
