#pragma once

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

struct GreedyTokens {
  /// int64 [rows].
  Tensor ids;
  /// float64 [rows, 3]: the id, its log probability under `logits`, and its score.
  Tensor found;
};

/// The token of the largest score in each row of scores [rows, V], as argmax finds it: the first one among equals, and
/// NaN is larger than any number. Logits [rows, V] have the same dtype, and may be the scores themselves. Rows may lie
/// further apart than V. On CUDA float32 and 16 bit are two short kernels, which add up in float32. No gradients.
GreedyTokens greedy_tokens(const Tensor& logits, const Tensor& scores);

/// What a decode step begins with, and what it has found. `greedy_advance` writes all of it.
struct GreedyChain {
  /// int64 [rows]: the tokens, and the slots where their keys and values go.
  Tensor ids, positions;
  /// float64 [turns, rows, 3]: `GreedyTokens::found` of the last steps. `turn` is int64 [1]: the place of this step.
  Tensor found, turn;
};

/// The end of a greedy step on the device: the likeliest token of each row of logits [rows, V] goes to `ids` and to
/// `found`, as greedy_tokens gives it, positions are one more, and the turn passes to the next place. The next step can
/// begin with them as they are. On CUDA two short kernels, where greedy_tokens has them.
void greedy_advance(const Tensor& logits, const GreedyChain& chain);

/// float64 [rows, 3] of any tokens ids [rows]: the id, and what `logs` and `scores` [rows, V] have for it.
Tensor found_tokens(const Tensor& ids, const Tensor& logs, const Tensor& scores);

}  // namespace levin::kernels
