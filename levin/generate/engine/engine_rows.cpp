#include "levin/generate/engine/engine_rows.h"

#include <algorithm>
#include <bit>

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>

#include "levin/core/error.h"

namespace levin {

void check_options(const EngineOptions& o) {
  LEVIN_CHECK(o.max_rows > 0 && o.prefill_chunk > 0 && o.max_queue > 0,
              "[engine] max_rows, prefill_chunk and max_queue must be positive");
  LEVIN_CHECK(o.block_tokens > 0 && std::has_single_bit(static_cast<uint64_t>(o.block_tokens)),
              "[engine] block_tokens ", o.block_tokens, " must be a power of two");
  LEVIN_CHECK(o.cache_tokens >= 0, "[engine] cache_tokens ", o.cache_tokens, " must be 0 (as many as fit) or positive");
  models::cache_dtype_of(o.cache_dtype);
  LEVIN_CHECK(o.prompt_lookup >= 0, "[engine] prompt_lookup ", o.prompt_lookup, " must not be negative");
  LEVIN_CHECK(o.prompt_lookup_ngram > 0 && o.draft_tokens > 0,
              "[engine] prompt_lookup_ngram and draft_tokens must be positive");
  LEVIN_CHECK(o.prompt_lookup == 0 || !o.draft, "[engine] either prompt_lookup or a draft model guesses");
}

}  // namespace levin

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

void take_scores(EngineRow& row, const Tensor& logits, int64_t first) {
  const auto& ids = row.ids();
  // What was scored before a preemption is computed again, and not scored again.
  const auto begin = std::max(first, row.scored());
  const auto end = std::min(first + logits.size(0), row.row.sampled.prompt_length() - 1);
  if (begin >= end) return;
  const auto scores = at::log_softmax(logits.slice(0, begin - first, end - first), -1);
  const auto next = at::tensor(std::vector<int64_t>(ids.begin() + begin + 1, ids.begin() + end + 1), at::kLong);
  const auto found = scores.gather(1, next.to(scores.device()).unsqueeze(1)).cpu();
  row.score.logprobs.insert(row.score.logprobs.end(), found.const_data_ptr<float>(),
                            found.const_data_ptr<float>() + found.numel());
  const auto most = std::min(row.task->request.options.top_logprobs, scores.size(1));
  if (most == 0) return;
  const auto [values, places] = scores.topk(most);
  const auto value = values.cpu().contiguous(), place = places.cpu().contiguous();
  for (int64_t t = 0; t < end - begin; ++t) {
    auto& top = row.score.top_logprobs.emplace_back();
    for (auto k = t * most; k < (t + 1) * most; ++k)
      top.emplace_back(place.const_data_ptr<int64_t>()[k], value.const_data_ptr<float>()[k]);
  }
}

}  // namespace levin::detail
