#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "levin/generate/decode_batch.h"
#include "levin/generate/sampler.h"

namespace levin::detail {

/// Guesses of the next tokens of rows.
struct Guesses {
  /// Of each row, the next one first; may be empty.
  std::vector<std::vector<int64_t>> ids;
  /// Of a draft model: what `filtered` gave for the first, second, ... guess of each row, float32 [rows, V].
  std::vector<Tensor> scores = {};

  /// What the model reads: the last token of each row, and its guesses.
  std::vector<std::vector<int64_t>> tokens(std::span<const SampledRow* const> rows) const;
};

/// Where guesses come from: earlier tokens of a row, or a draft model, whose batch follows that of the model.
class Speculation {
 public:
  /// `most`: tokens that are guessed at once. `context`: positions that both models have; 0: no bound.
  Speculation(const GenerateOptions& options, const DecodeBatchOptions& sizes, int64_t most, int64_t context);

  void append(std::span<const std::vector<int64_t>* const> prompts);
  void select(std::span<const int64_t> rows);
  void remove(int64_t row);
  /// Forgets what a draft model has read from `length` on.
  void truncate(int64_t row, int64_t length);
  /// At most `most[i]` for row i.
  Guesses guess(std::span<const SampledRow* const> rows, std::span<const int64_t> most);

 private:
  /// Whether what the draft model has not read yet fits in one pass: it has not followed where there was no room.
  bool can_draft(std::span<const SampledRow* const> rows) const;
  Guesses drafted(std::span<const SampledRow* const> rows, int64_t count);

  const GenerateOptions& options_;
  int64_t most_, context_;
  std::optional<DecodeBatch> draft_;
};

/// Null where the options ask for no guesses; else `sizes` gets the room that they need.
std::unique_ptr<Speculation> make_speculation(const models::Decoder& model, const GenerateOptions& options,
                                              DecodeBatchOptions& sizes);
/// A draft model that does not fit the model or the prompts is refused.
void check_draft(const models::DecoderOptions& model, const models::Decoder& draft,
                 const std::vector<std::vector<int64_t>>& prompts);

/// The tokens of each row, given the logits behind guesses.tokens(rows), all in one list: the guesses that hold, and
/// the token behind them. They have the distribution of tokens that are drawn one by one. One with an error is the
/// last.
std::vector<std::vector<SampledToken>> agreed(const Tensor& logits, std::span<const SampledRow* const> rows,
                                              const Guesses& guesses);
/// What followed the last tokens of a row (`ngram` at most) when they came before, up to `most` tokens: transformers'
/// prompt lookup.
std::vector<int64_t> looked_up(std::span<const int64_t> ids, int64_t ngram, int64_t most);

}  // namespace levin::detail
