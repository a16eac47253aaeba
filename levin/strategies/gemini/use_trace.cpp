#include "levin/strategies/gemini/use_trace.h"

#include <algorithm>

namespace levin::detail {

void UseTrace::add(std::span<const int> chunks) {
  for (const auto chunk : chunks) {
    if (by_chunk_.size() <= static_cast<size_t>(chunk)) by_chunk_.resize(static_cast<size_t>(chunk) + 1);
    by_chunk_[static_cast<size_t>(chunk)].push_back(size());
  }
  uses_.emplace_back(chunks.begin(), chunks.end());
}

void UseTrace::clear() {
  uses_.clear();
  by_chunk_.clear();
}

bool UseTrace::matches(int64_t use, std::span<const int> chunks) const {
  return use < size() && std::ranges::equal(uses_[static_cast<size_t>(use)], chunks);
}

int64_t UseTrace::next_use(int chunk, int64_t after) const {
  if (by_chunk_.size() <= static_cast<size_t>(chunk)) return kNever;
  const auto& uses = by_chunk_[static_cast<size_t>(chunk)];
  const auto next = std::upper_bound(uses.begin(), uses.end(), after);
  return next == uses.end() ? kNever : *next;
}

}  // namespace levin::detail
