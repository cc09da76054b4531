// Reduction through the arena, software-pipelined over pieces: fill piece k, reduce k-1, drain k-2.
#include "collectives/host_reduce.h"

#include <algorithm>
#include <chrono>

#include "collectives/copies.h"
#include "collectives/store_policy.h"

namespace hvd {

namespace {

constexpr std::size_t kLineBytes = 64;

Status aborted() {
  return Status::aborted("The job was aborted while ranks of this host exchanged data.");
}

using Clock = std::chrono::steady_clock;

// One execution of host_reduce_shares: where the blocks lie and what is done with a piece.
class ShareReduction {
 public:
  ShareReduction(ArenaTurn& turn, std::span<const View> shares, const Reduction& reduction,
                 bool redistribute, const HostTuning& tuning)
      : turn_(turn),
        shares_(shares),
        reduction_(reduction),
        redistribute_(redistribute),
        stores_(tuning.stores),
        sources_(turn.members()) {
    std::size_t busy = 1;  // trailing shares may be empty: they take no room in a slot
    std::size_t longest = 0;
    for (std::size_t member = 0; member < shares_.size(); ++member) {
      total_bytes_ += shares_[member].bytes;
      longest = std::max(longest, shares_[member].bytes);
      if (shares_[member].bytes > 0) busy = member + 1;
    }
    const std::size_t piece = std::min(tuning.piece_bytes, turn.slot_bytes());
    const std::size_t lines = std::max(piece / busy / kLineBytes, std::size_t{1});
    block_bytes_ =
        std::min(lines * kLineBytes, (longest + kLineBytes - 1) / kLineBytes * kLineBytes);
    pieces_ = longest == 0 ? 0 : (longest + block_bytes_ - 1) / block_bytes_;
    turn_.set_piece_bytes(pieces_ > 1 ? turn_.slot_bytes() : block_bytes_ * busy);
    piece_bytes_ = block_bytes_ * busy;
    sample_pieces_ = std::max(StorePolicy::kSampleBytes / std::max(piece_bytes_, kLineBytes),
                              turn.slot_count() + 1);
    output_store_ = output_store_for(total_bytes_);
  }

  Status run() {
    if (!turn_.fits(pieces_))
      return Status::invalid_argument("The tensors are too large for one response.");
    for (std::size_t step = 0; step < pieces_ + 2; ++step) {
      if (step < pieces_ && !fill(step)) return aborted();
      if (step >= 1 && step <= pieces_ && !reduce_mine(step - 1)) return aborted();
      if (step >= 2 && !drain(step - 2)) return aborted();
    }
    finish_sample(pieces_);
    turn_.next_phase(pieces_);
    return Status::ok();
  }

 private:
  View block(std::size_t member, std::size_t piece) const {
    return shares_[member].part(piece * block_bytes_, block_bytes_);
  }
  // Where a member's share lies within a slot.
  std::size_t block_offset(std::size_t member) const { return member * block_bytes_; }

  bool fill(std::size_t piece) {
    if (!choose_store(piece) || !turn_.claim(piece)) return false;
    for (std::size_t member = 0; member < turn_.members(); ++member) {
      if (member == turn_.me()) continue;
      gather(turn_.my_slot(piece) + block_offset(member), block(member, piece), arena_store_);
    }
    publish(Counter::kFilled, piece);
    return true;
  }

  bool reduce_mine(std::size_t piece) {
    if (!wait_filled(piece)) return false;
    std::size_t done = 0;
    block(turn_.me(), piece).for_each([&](const Segment& part) {
      const std::size_t offset = block_offset(turn_.me()) + done;
      for (std::size_t member = 0; member < turn_.members(); ++member) {
        sources_[member] = member == turn_.me() ? part.in : turn_.slot(member, piece) + offset;
      }
      const Sink mine{part.out, output_store_of(part, output_store_)};
      const Sink others{redistribute_ ? turn_.my_slot(piece) + offset : nullptr, arena_store_};
      reduce(reduction_, sources_, part.bytes / size_of(reduction_.dtype), mine, others);
      done += part.bytes;
    });
    publish(redistribute_ ? Counter::kReduced : Counter::kDrained, piece);
    return true;
  }

  bool drain(std::size_t piece) {
    if (!redistribute_) return true;
    for (std::size_t member = 0; member < turn_.members(); ++member) {
      const View part = block(member, piece);
      if (member == turn_.me() || part.bytes == 0) continue;
      if (!turn_.wait(member, Counter::kReduced, piece)) return false;
      scatter(part, turn_.slot(member, piece) + block_offset(member), output_store_);
    }
    turn_.publish(Counter::kDrained, piece);
    return true;
  }

  void publish(Counter counter, std::size_t piece) {
    if (arena_store_ == Store::kStreaming) finish_streaming();
    turn_.publish(counter, piece);
  }

  // The first member decides for all, a group of pieces at a time: a mixture would be measured as
  // neither. Its choice travels with the first piece of a group, and the others follow from the
  // second on. The word can't be overwritten too early: a group has more pieces than there are
  // slots, and no work ends on the first member before all others have filled their last piece.
  bool choose_store(std::size_t piece) {
    if (stores_ == nullptr) return true;
    const std::size_t in_group = piece % sample_pieces_;
    if (turn_.me() == 0 && in_group == 0) {
      finish_sample(piece);
      arena_store_ = stores_->choose(total_bytes_);
      turn_.set_hint(static_cast<std::uint32_t>(arena_store_));
      sample_start_ = Clock::now();
      sample_first_ = piece;
    } else if (turn_.me() != 0 && piece == 0) {
      arena_store_ = stores_->best(total_bytes_);
    } else if (turn_.me() != 0 && in_group == 1) {
      if (!turn_.wait(0, Counter::kFilled, piece - 1)) return false;
      arena_store_ = static_cast<Store>(turn_.hint(0));
      stores_->follow(total_bytes_, arena_store_);
    }
    return true;
  }

  // The wait for the first piece is for others to arrive, which tells nothing about stores.
  bool wait_filled(std::size_t piece) {
    const auto before = piece == 0 ? Clock::now() : Clock::time_point{};
    if (!turn_.wait_all(Counter::kFilled, piece)) return false;
    if (piece > 0 || stores_ == nullptr) return true;
    sample_start_ += Clock::now() - before;
    // In a work of one piece it is too late to follow: in the next one.
    if (turn_.me() != 0) stores_->follow(total_bytes_, static_cast<Store>(turn_.hint(0)));
    return true;
  }

  void finish_sample(std::size_t piece) {
    if (stores_ == nullptr || turn_.me() != 0 || piece == sample_first_) return;
    const double nanoseconds =
        std::chrono::duration<double, std::nano>(Clock::now() - sample_start_).count();
    stores_->record(total_bytes_, arena_store_, (piece - sample_first_) * piece_bytes_,
                    nanoseconds);
  }

  ArenaTurn& turn_;
  std::span<const View> shares_;
  const Reduction& reduction_;
  bool redistribute_;
  StorePolicy* stores_;
  std::vector<const std::byte*> sources_;
  std::size_t total_bytes_ = 0;
  std::size_t block_bytes_ = 0;
  std::size_t piece_bytes_ = 0;
  std::size_t pieces_ = 0;
  Store output_store_ = Store::kOrdinary;
  Store arena_store_ = Store::kOrdinary;
  std::size_t sample_pieces_ = 1;
  std::size_t sample_first_ = 0;
  Clock::time_point sample_start_;
};

}  // namespace

Status host_allreduce_small(ArenaTurn& turn, const View& whole, const Reduction& reduction) {
  turn.set_piece_bytes(whole.bytes);
  if (!turn.claim(0)) return aborted();
  gather(turn.my_slot(0), whole, Store::kOrdinary);
  turn.publish(Counter::kFilled, 0);
  if (!turn.wait_all(Counter::kFilled, 0)) return aborted();
  std::vector<const std::byte*> sources(turn.members());
  std::size_t done = 0;
  whole.for_each([&](const Segment& part) {
    for (std::size_t member = 0; member < sources.size(); ++member) {
      sources[member] = member == turn.me() ? part.in : turn.slot(member, 0) + done;
    }
    reduce(reduction, sources, part.bytes / size_of(reduction.dtype), {part.out, Store::kOrdinary});
    done += part.bytes;
  });
  turn.publish(Counter::kDrained, 0);
  turn.next_phase(1);
  return Status::ok();
}

Status host_reduce_shares(ArenaTurn& turn, std::span<const View> shares, const Reduction& reduction,
                          bool redistribute, const HostTuning& tuning) {
  return ShareReduction(turn, shares, reduction, redistribute, tuning).run();
}

}  // namespace hvd
