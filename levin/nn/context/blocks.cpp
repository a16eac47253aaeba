#include "levin/nn/context/blocks.h"

#include <optional>

namespace levin::nn {
namespace {

using Kind = ContextBlock::Kind;

/// What queries at these positions see of keys at those; nothing where they see none.
std::optional<Kind> seen_kind(const Share& queries, const Share& keys, bool causal, int64_t window) {
  if (!causal) return Kind::kFull;
  const auto first = queries.first, last = queries.first + queries.count - 1;
  const auto key_first = keys.first, key_last = keys.first + keys.count - 1;
  if (key_first > last || (window > 0 && key_last <= first - window)) return {};
  const bool near = window == 0 || key_first > last - window;
  if (near && key_last <= first) return Kind::kFull;
  if (near && key_first == first && key_last == last) return Kind::kCausal;
  return Kind::kSome;
}

bool tokens_follow(const Share& a, const Share& b) {
  return a.first + a.count == b.first;
}

bool same_tokens(const Share& a, const Share& b) {
  return a.first == b.first && a.count == b.count;
}

/// Two full blocks that are one.
bool fuse_blocks(ContextBlock& a, const ContextBlock& b) {
  if (a.kind != Kind::kFull || b.kind != Kind::kFull) return false;
  if (same_tokens(a.keys, b.keys) && tokens_follow(a.queries, b.queries))
    return a.queries.count += b.queries.count, true;
  if (same_tokens(a.queries, b.queries) && tokens_follow(a.keys, b.keys)) return a.keys.count += b.keys.count, true;
  return false;
}

}  // namespace

bool ContextBlock::operator==(const ContextBlock& other) const {
  return same_tokens(queries, other.queries) && same_tokens(keys, other.keys) && kind == other.kind;
}

std::vector<ContextBlock> context_blocks(const ContextLayout& layout, int64_t length, int rank, int owner, bool causal,
                                         int64_t window) {
  // A rank's tokens are in the order of the sequence: among themselves they are causal as they lie.
  const auto count = layout.count(length, rank);
  if (causal && rank == owner && (window == 0 || window >= length)) return {{{0, count}, {0, count}, Kind::kCausal}};
  std::vector<ContextBlock> blocks;
  int64_t query = 0;
  for (const auto& queries : layout.runs(length, rank)) {
    int64_t key = 0;
    for (const auto& keys : layout.runs(length, owner)) {
      if (const auto kind = seen_kind(queries, keys, causal, window)) {
        const ContextBlock block{{query, queries.count}, {key, keys.count}, *kind};
        if (blocks.empty() || !fuse_blocks(blocks.back(), block)) blocks.push_back(block);
      }
      key += keys.count;
    }
    query += queries.count;
  }
  // Rows that were joined may follow each other now.
  for (size_t i = 1; i < blocks.size();)
    if (fuse_blocks(blocks[i - 1], blocks[i]))
      blocks.erase(blocks.begin() + static_cast<ptrdiff_t>(i));
    else
      ++i;
  return blocks;
}

int64_t context_work(const ContextLayout& layout, int64_t length, int rank, bool causal, int64_t window) {
  int64_t pairs = 0;
  for (int owner = 0; owner < layout.size; ++owner)
    for (const auto& block : context_blocks(layout, length, rank, owner, causal, window))
      pairs += block.kind == Kind::kCausal ? block.queries.count * (block.queries.count + 1) / 2
                                           : block.queries.count * block.keys.count;
  return pairs;
}

}  // namespace levin::nn
