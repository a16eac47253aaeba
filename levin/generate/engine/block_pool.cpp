#include "levin/generate/engine/block_pool.h"

#include "levin/core/error.h"

namespace levin::detail {

BlockPool::BlockPool(int64_t first, int64_t count) : first_(first), blocks_(static_cast<size_t>(count)) {
  for (int64_t i = 0; i < count; ++i) free_.push_back(first + count - 1 - i);
}

std::optional<int64_t> BlockPool::take() {
  if (free_.empty() && unused_.empty()) return std::nullopt;
  int64_t block = 0;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else {
    block = unused_.front();
    unused_.pop_front();
    known_.erase(at(block).known);
    at(block).is_known = false;
  }
  at(block).holders = 1;
  return block;
}

void BlockPool::hold(int64_t block) {
  auto& held = at(block);
  if (held.holders++ == 0) unused_.erase(held.place);
}

void BlockPool::release(int64_t block) {
  auto& held = at(block);
  LEVIN_CHECK(held.holders > 0, "[engine] block ", block, " is released, and nobody holds it");
  if (--held.holders > 0) return;
  if (held.is_known)
    held.place = unused_.insert(unused_.end(), block);
  else
    free_.push_back(block);
}

std::optional<BlockPool::Found> BlockPool::find(Node before, std::span<const int64_t> tokens) const {
  const auto found = known_.find({before, {tokens.begin(), tokens.end()}});
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

BlockPool::Node BlockPool::publish(Node before, std::span<const int64_t> tokens, int64_t block) {
  auto [place, is_new] = known_.try_emplace({before, {tokens.begin(), tokens.end()}}, Found{next_node_, block});
  if (!is_new) return place->second.node;
  ++next_node_;
  at(block).known = place;
  at(block).is_known = true;
  return place->second.node;
}

}  // namespace levin::detail
