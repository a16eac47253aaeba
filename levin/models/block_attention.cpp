#include "levin/models/block_attention.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "levin/core/error.h"

namespace levin::models {
namespace {

using BlockList = std::vector<int32_t>;
using BlockLists = std::vector<std::vector<BlockList>>;

BlockList blocks_between(int64_t begin, int64_t end) {
  BlockList list(static_cast<size_t>(std::max<int64_t>(0, end - begin)));
  std::iota(list.begin(), list.end(), static_cast<int32_t>(begin));
  return list;
}

/// numpy.random.permutation after numpy.random.seed.
class NumpyPermutation {
 public:
  explicit NumpyPermutation(int64_t seed) : random_(static_cast<uint32_t>(seed)) {}

  BlockList operator()(BlockList list) {
    for (size_t i = list.size(); i-- > 1;) std::swap(list[i], list[up_to(static_cast<uint32_t>(i))]);
    return list;
  }

 private:
  /// Draws again until the number is small enough.
  uint32_t up_to(uint32_t most) {
    uint32_t bits = most;
    for (const int shift : {1, 2, 4, 8, 16}) bits |= bits >> shift;
    uint32_t value = 0;
    do value = static_cast<uint32_t>(random_()) & bits;
    while (value > most);
    return value;
  }

  std::mt19937 random_;
};

/// The plan of the paper, for texts of 1024, 3072 and 4096 tokens: it is drawn for the longest text, from the first
/// 1024 tokens, and cut.
std::vector<BlockList> drawn_for_paper(const BlockAttentionOptions& o, int64_t rows, NumpyPermutation& permuted) {
  const auto blocks = o.max_positions / o.block_size, size = o.block_size;
  const auto middle = blocks_between(1, blocks - 1);
  const auto last = 1024 > 2 * size ? 1024 / size - 1 : blocks - 1;
  // As Python slices it.
  const auto part = [&](int64_t begin, int64_t end) {
    const auto count = static_cast<int64_t>(middle.size());
    const auto place = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + count : i, 0, count); };
    begin = place(begin), end = std::max(begin, place(end));
    return BlockList(middle.begin() + begin, middle.begin() + end);
  };
  std::vector<BlockList> result;
  for (int64_t i = 1; i < blocks - 1; ++i) {
    BlockList from;
    if (i == 1) {
      from = part(2, last);
    } else if (i == 2) {
      from = part(3, last);
    } else if (i == blocks - 3 || i == blocks - 2 || i - 2 > last) {
      from = part(0, last);
    } else {
      from = part(0, i - 2);
      const auto behind = i + 1 == last ? BlockList{} : part(i + 1, last);
      from.insert(from.end(), behind.begin(), behind.end());
    }
    auto drawn = permuted(std::move(from));  // also for rows that are cut: it moves the generator
    if (i > rows) continue;
    LEVIN_CHECK(static_cast<int64_t>(drawn.size()) >= o.random_blocks, "[big_bird] blocks of ", size,
                " tokens leave too few for ", o.random_blocks, " random ones in training");
    drawn.resize(static_cast<size_t>(o.random_blocks));
    result.push_back(std::move(drawn));
  }
  return result;
}

/// For texts of other lengths: of the first 5 + 2 * random_blocks blocks, without those that are seen anyway.
BlockList drawn_for_row(const BlockAttentionOptions& o, int64_t row, NumpyPermutation& permuted) {
  const auto end = 5 + 2 * o.random_blocks;
  const auto is_free = [&](int32_t block) {
    if (std::abs(block - row) <= 1 || block == 0 || block == end - 1) return false;
    return !(row == 1 && block == end - 2) && !(row == end - 2 && block == 1);
  };
  BlockList result;
  for (const auto block : permuted(blocks_between(0, end)))
    if (is_free(block) && static_cast<int64_t>(result.size()) < o.random_blocks) result.push_back(block);
  return result;
}

/// All blocks that each of blocks 1 to N - 2 sees; its random ones are [head][row], or the first block if empty.
BlockLists seen_blocks(const BlockAttentionOptions& o, int64_t blocks, const BlockLists& random) {
  BlockLists result(static_cast<size_t>(o.num_heads));
  for (size_t h = 0; h < result.size(); ++h)
    for (int64_t i = 1; i < blocks - 1; ++i) {
      BlockList seen{0};
      for (int64_t j = std::max<int64_t>(1, i - 1); j <= std::min(blocks - 2, i + 1); ++j)
        seen.push_back(static_cast<int32_t>(j));
      seen.push_back(static_cast<int32_t>(blocks - 1));
      const auto more =
          random.empty() ? BlockList(static_cast<size_t>(o.random_blocks), 0) : random[h][static_cast<size_t>(i - 1)];
      seen.insert(seen.end(), more.begin(), more.end());
      result[h].push_back(std::move(seen));
    }
  return result;
}

}  // namespace

BlockLists random_blocks_of(const BlockAttentionOptions& o, int64_t tokens) {
  const auto rows = tokens / o.block_size - 2;
  BlockLists result(static_cast<size_t>(o.num_heads));
  NumpyPermutation permuted(o.layer);
  if (tokens == 1024 || tokens == 3072 || tokens == 4096) {
    for (auto& of_head : result) of_head = drawn_for_paper(o, rows, permuted);
    return result;
  }
  for (auto& of_head : result) of_head.resize(static_cast<size_t>(rows));
  if (o.random_blocks == 0) return result;
  for (int64_t row = 1; row <= rows; ++row)
    for (auto& of_head : result) of_head[static_cast<size_t>(row - 1)] = drawn_for_row(o, row, permuted);
  return result;
}

kernels::BlockPlan BlockAttention::plan_of(int64_t tokens, bool training, c10::Device device) {
  const std::lock_guard lock(mutex_);
  auto& plan = plans_[{tokens, training, device.type(), device.index()}];
  if (!plan.seen.defined()) {
    const auto random = training ? random_blocks_of(options_, tokens) : BlockLists{};
    auto seen = seen_blocks(options_, tokens / options_.block_size, random);
    if (heads_.count > 0) seen = BlockLists(seen.begin() + heads_.first, seen.begin() + heads_.first + heads_.count);
    plan = kernels::block_plan(seen, options_.block_size, device);
  }
  return plan;
}

void BlockAttention::take_heads(Share heads) {
  const std::lock_guard lock(mutex_);
  heads_ = heads;
  plans_.clear();
}

Tensor BlockAttention::operator()(const Tensor& qkv, const Tensor& mask, bool training) {
  return kernels::block_sparse_attention(qkv, mask, plan_of(qkv.size(1), training, qkv.device()));
}

}  // namespace levin::models
