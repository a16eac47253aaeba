#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "levin/generate/engine.h"
#include "levin/generate/engine/block_pool.h"
#include "levin/generate/generated_row.h"
#include "levin/generate/paged_batch.h"

namespace levin::detail {

/// A request under way.
struct EngineTask {
  uint64_t id = 0;
  EngineRequest request;
  bool has_failed = false;
};

/// A sequence of a request, and its blocks.
struct EngineRow {
  std::shared_ptr<EngineTask> task;
  GeneratedRow row;
  /// Of all rows, by arrival: the smaller goes first.
  uint64_t order = 0;
  std::vector<int64_t> blocks = {};
  /// Tokens whose keys and values are in the cache.
  int64_t computed = 0;
  /// The same in the cache of a draft model; without one nobody reads it.
  int64_t drafted = 0;
  bool has_draft = false;
  /// Blocks from the first on that are known to the pool, or were found there, and what follows them.
  int64_t known = 0;
  BlockPool::Node node = 0;
  /// The prompt is scored, and these are the scores so far; a preemption does not lose them.
  bool is_scored = false;
  PromptScore score = {};
  /// Blocks that may be shared at most: those whose numbers depend on their tokens alone.
  int64_t sharable = 0;

  const std::vector<int64_t>& ids() const { return row.sampled.ids(); }
  int64_t length() const { return static_cast<int64_t>(ids().size()); }
  /// Tokens that have to go through the model before the next one is drawn.
  int64_t remaining() const { return length() - computed; }
  /// Tokens of the prompt whose score is known; nothing scores the first one.
  int64_t scored() const { return static_cast<int64_t>(score.logprobs.size()); }
  /// Whether scores are missing.
  bool is_scoring() const { return is_scored && scored() + 1 < row.sampled.prompt_length(); }
  /// Tokens that others may take over.
  int64_t readable() const { return has_draft ? std::min(computed, drafted) : computed; }
};

/// Takes the scores of a prompt in: logits [N, V] behind its tokens from `first` on.
void take_scores(EngineRow& row, const Tensor& logits, int64_t first);

/// Blocks of rows: how they are had, shared and given back.
class RowBlocks {
 public:
  RowBlocks(int64_t count, int64_t block_tokens) : pool_(1, count), block_tokens_(block_tokens) {}

  const BlockPool& pool() const { return pool_; }
  int64_t block_tokens() const { return block_tokens_; }
  int64_t blocks_for(int64_t tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }

  /// Blocks for all tokens of a row that has none: those that others have computed, and new ones. False: there are too
  /// few, were `spare` to be left; the row has none then.
  bool admit(EngineRow& row, int64_t spare);
  /// Room for `tokens` tokens; false where there is no block left.
  bool grow(EngineRow& row, int64_t tokens);
  /// Takes blocks over that others have computed since: tokens that were found.
  int64_t match(EngineRow& row);
  /// Makes the blocks known that have become full.
  void publish(EngineRow& row);
  /// Gives all blocks back: the row begins again.
  void release(EngineRow& row);
  /// Whether two rows are about to compute the same block.
  bool computes_same(const EngineRow& a, const EngineRow& b) const;

 private:
  std::span<const int64_t> tokens_of(const EngineRow& row, int64_t block) const {
    return std::span(row.ids()).subspan(static_cast<size_t>(block * block_tokens_), static_cast<size_t>(block_tokens_));
  }
  /// The next block of a row, where another row has computed it.
  std::optional<BlockPool::Found> next_known(const EngineRow& row) const;

  BlockPool pool_;
  int64_t block_tokens_;
};

}  // namespace levin::detail
