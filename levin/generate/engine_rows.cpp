#include "levin/generate/engine_rows.h"

#include <algorithm>

namespace levin::detail {

std::optional<BlockPool::Found> RowBlocks::next_known(const EngineRow& row) const {
  // The last token always goes through the model: the next one is drawn from its logits.
  const bool is_full = (row.known + 1) * block_tokens_ < row.length();
  if (row.known >= row.sharable || row.computed != row.known * block_tokens_ || !is_full) return std::nullopt;
  return pool_.find(row.node, tokens_of(row, row.known));
}

bool RowBlocks::admit(EngineRow& row, int64_t spare) {
  while (const auto found = next_known(row)) {
    pool_.hold(found->block);
    row.blocks.push_back(found->block);
    row.node = found->node;
    ++row.known;
    row.drafted = row.computed += block_tokens_;
  }
  const auto missing = blocks_for(row.length()) - static_cast<int64_t>(row.blocks.size());
  if (pool_.available() >= missing + spare && grow(row, row.length())) return true;
  release(row);
  return false;
}

bool RowBlocks::grow(EngineRow& row, int64_t tokens) {
  while (static_cast<int64_t>(row.blocks.size()) < blocks_for(tokens)) {
    const auto block = pool_.take();
    if (!block) return false;
    row.blocks.push_back(*block);
  }
  return true;
}

int64_t RowBlocks::match(EngineRow& row) {
  const auto before = row.computed;
  while (const auto found = next_known(row)) {
    auto& own = row.blocks[static_cast<size_t>(row.known)];
    pool_.hold(found->block);
    pool_.release(own);
    own = found->block;
    row.node = found->node;
    ++row.known;
    row.drafted = row.computed += block_tokens_;
  }
  return row.computed - before;
}

void RowBlocks::publish(EngineRow& row) {
  while (row.known < row.sharable && (row.known + 1) * block_tokens_ <= row.readable()) {
    row.node = pool_.publish(row.node, tokens_of(row, row.known), row.blocks[static_cast<size_t>(row.known)]);
    ++row.known;
  }
}

void RowBlocks::release(EngineRow& row) {
  for (auto block = row.blocks.rbegin(); block != row.blocks.rend(); ++block) pool_.release(*block);
  row.blocks.clear();
  row.computed = row.drafted = row.known = 0;
  row.node = 0;
}

bool RowBlocks::computes_same(const EngineRow& a, const EngineRow& b) const {
  if (a.known >= a.sharable || b.known >= b.sharable || a.node != b.node || a.known != b.known) return false;
  const auto begin = a.known * block_tokens_, end = begin + block_tokens_;
  return a.computed == begin && b.computed == begin && end <= a.length() && end < b.length() &&
         std::ranges::equal(tokens_of(a, a.known), tokens_of(b, b.known));
}

}  // namespace levin::detail
