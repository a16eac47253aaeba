#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "levin/generate/engine/engine_rows.h"
#include "levin/generate/paged_batch.h"

namespace levin::detail {

/// Guesses of the next tokens of an engine's rows: what followed the last tokens earlier in the row, or what a draft
/// model says. A draft model has a cache of as many blocks, and a row has the same blocks in both.
class EngineGuesses {
 public:
  /// `sizes`: of the model's own batch.
  EngineGuesses(const EngineOptions& options, const PagedBatchOptions& sizes);

  /// Bytes of the cache of a draft model; 0 without one.
  int64_t cache_bytes() const { return draft_ ? draft_->cache().nbytes() : 0; }
  bool has_draft() const { return draft_.has_value(); }
  /// Guesses of a row at once, at most.
  int64_t most() const { return most_; }
  /// A draft model reads what the model reads of prompts. `parts` belong to `rows`.
  void read_along(std::span<EngineRow* const> rows, std::span<const PagedRow> parts);
  /// At most `most[i]` guesses for rows[i], which has blocks for them. A draft model draws by the random numbers of the
  /// row, as the model does: tokens are those of a run without guesses, and guesses are often right.
  std::vector<std::vector<int64_t>> guess(std::span<EngineRow* const> rows, std::span<const int64_t> most);
  /// Says which of the guesses were right: `taken` of the last ones. The row has its new tokens.
  static void settle(EngineRow& row, int64_t length_before, int64_t taken);

 private:
  std::vector<std::vector<int64_t>> drafted(std::span<EngineRow* const> rows, std::span<const int64_t> most);

  int64_t most_, ngram_;
  std::optional<PagedBatch> draft_;
  /// Tokens that the draft model may read of a row; 0: no bound.
  int64_t context_ = 0;
};

}  // namespace levin::detail
