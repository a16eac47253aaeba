#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "levin/models/folder.h"

namespace levin::models {

struct ScoreOptions {
  /// Rows that go through the model together.
  int64_t batch = 8;
  /// Keep what the model gives for each token.
  bool keep_outputs = false;
};

struct RowScore {
  /// Of a decoder: the log probability of each token after the first, given those before it.
  std::vector<double> logprobs;
  /// exp of the mean of -logprobs; NaN of a row of one token.
  double perplexity = 0;
  /// With keep_outputs, float32 on the CPU: logits [T, V] of a decoder, last hidden states [T, D] of an encoder and of
  /// a decoder that classifies.
  Tensor output;
  /// Of these two: what the head gives for the row; undefined without a head.
  Tensor head;
};

/// Scores rows of unequal length; each has the numbers that it has alone. An id that the model does not have is an
/// Error.
///
///     const std::vector<std::vector<int64_t>> rows{{464, 2068, 7586}, {15496}};
///     auto scores = levin::models::score_rows(model, rows);
std::vector<RowScore> score_rows(LanguageModel model, std::span<const std::vector<int64_t>> rows,
                                 const ScoreOptions& options = {});

}  // namespace levin::models
