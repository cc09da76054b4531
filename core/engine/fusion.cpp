// Fusion: blocks (single tensors, or group members that belong together) are packed in order.
#include "engine/fusion.h"

#include <limits>

namespace hvd {

namespace {

// What stays together in any case.
struct Block {
  std::vector<std::size_t> items;
  std::int64_t bytes = 0;
  bool alone = false;  // never shares a response with another block
};

bool can_fuse(const Request& a, const Request& b) {
  return a.kind == b.kind && is_fusible(a.kind) && a.process_set == b.process_set &&
         a.dtype == b.dtype && a.device == b.device && a.op == b.op && a.prescale == b.prescale &&
         a.postscale == b.postscale;
}

std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
}

std::int64_t saturating_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max()
                                                : product;
}

// The members of one group, split by what can fuse.
void add_group(std::span<const FusionItem> items, std::size_t begin, std::size_t end, bool alone,
               std::vector<Block>& blocks) {
  const std::size_t first_block = blocks.size();
  for (std::size_t i = begin; i < end; ++i) {
    std::size_t b = first_block;
    while (b < blocks.size() &&
           !can_fuse(*items[blocks[b].items.front()].request, *items[i].request)) {
      ++b;
    }
    if (b == blocks.size()) blocks.push_back({{}, 0, alone});
    blocks[b].items.push_back(i);
    blocks[b].bytes = saturating_add(blocks[b].bytes, items[i].bytes);
  }
}

std::vector<Block> make_blocks(std::span<const FusionItem> items, const FusionOptions& options) {
  std::vector<Block> blocks;
  blocks.reserve(items.size());
  for (std::size_t i = 0; i < items.size();) {
    std::size_t end = i + 1;
    if (items[i].group >= 0) {
      while (end < items.size() && items[end].group == items[i].group) ++end;
      add_group(items, i, end, options.disable_group_fusion, blocks);
    } else {
      blocks.push_back({{i}, items[i].bytes, false});
    }
    i = end;
  }
  return blocks;
}

// Takes block `head` and what fuses with it out of `next`, a linked list of the blocks still to
// place.
std::vector<std::size_t> take_response(std::span<const FusionItem> items,
                                       std::vector<Block>& blocks, std::vector<std::size_t>& next,
                                       std::size_t head, std::int64_t threshold) {
  std::vector<std::size_t> response = std::move(blocks[head].items);
  const Request& first = *items[response.front()].request;
  if (blocks[head].alone || !is_fusible(first.kind)) return response;
  std::int64_t looked_at = blocks[head].bytes;  // fused and skipped
  std::size_t before = head;
  for (std::size_t b = next[head]; b < blocks.size(); b = next[before]) {
    looked_at = saturating_add(looked_at, blocks[b].bytes);
    if (looked_at > threshold) break;
    if (blocks[b].alone || !can_fuse(first, *items[blocks[b].items.front()].request)) {
      before = b;
      continue;
    }
    response.insert(response.end(), blocks[b].items.begin(), blocks[b].items.end());
    next[before] = next[b];
  }
  return response;
}

}  // namespace

std::vector<std::vector<std::size_t>> plan_fusion(std::span<const FusionItem> items,
                                                  const FusionOptions& options) {
  if (items.size() == 1) return {{0}};
  std::vector<Block> blocks = make_blocks(items, options);
  std::vector<std::size_t> next(blocks.size());
  for (std::size_t b = 0; b < blocks.size(); ++b) next[b] = b + 1;
  std::vector<std::vector<std::size_t>> responses;
  for (std::size_t head = 0; head < blocks.size(); head = next[head]) {
    // Zero-length tensors would pass a threshold of 0.
    if (options.threshold_bytes <= 0) {
      responses.push_back(std::move(blocks[head].items));
    } else {
      responses.push_back(take_response(items, blocks, next, head, options.threshold_bytes));
    }
  }
  return responses;
}

bool is_fusible(Collective kind) {
  return kind == Collective::kAllreduce || kind == Collective::kReducescatter ||
         kind == Collective::kAllgather;
}

std::int64_t fusion_bytes(const Request& request, std::int64_t set_size) {
  auto bytes = static_cast<std::int64_t>(size_of(request.dtype));
  bool empty = false;
  for (const std::int64_t dimension : request.shape) {
    empty = empty || dimension == 0;
    bytes = saturating_multiply(bytes, dimension);
  }
  if (request.kind == Collective::kBarrier || empty) return 0;
  return request.kind == Collective::kAllgather ? saturating_multiply(bytes, set_size) : bytes;
}

}  // namespace hvd
