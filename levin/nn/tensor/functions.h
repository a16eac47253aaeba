#pragma once

#include <span>

#include "levin/nn/tensor/part.h"

/// What tensor parallelism sends, as functions that autograd knows. A group of one sends nothing.
namespace levin::nn {

using at::Tensor;

/// x; its gradient is summed over the ranks.
Tensor copied_to_ranks(const Tensor& x, const TensorRanks& ranks);
/// The sum over the ranks; its gradient is that of each.
Tensor summed_over_ranks(const Tensor& x, const TensorRanks& ranks);
/// Parts of a dimension, `counts` of each rank, put together; of the gradient each rank takes its part.
Tensor gathered_from_ranks(const Tensor& x, int64_t dim, std::span<const int64_t> counts, const TensorRanks& ranks);
/// This rank's shard of a dimension that divides; the gradients are put together.
Tensor part_of_rank(const Tensor& x, int64_t dim, const TensorRanks& ranks);
/// Equal parts of a dimension put together; gradients are summed, and each rank takes its part.
Tensor gathered_for_region(const Tensor& x, int64_t dim, const TensorRanks& ranks);
/// This rank's shard of the sum over the ranks; the gradients are put together.
Tensor summed_part(const Tensor& x, int64_t dim, const TensorRanks& ranks);

/// The mean cross entropy of logits x W^T with targets, where a rank has the rows `share` of W: logits of [N, V] are
/// nowhere. x [..., D] has passed copied_to_ranks; targets [...], `ignored` counts for nothing. `rows` rows of logits
/// are in memory at once (0: all), and their gradients are taken in the same go. softcap: cap * tanh(logit / cap).
struct VocabLossOptions {
  int64_t rows = 1024;
  int64_t ignored = -100;
  double softcap = 0;
};
Tensor vocab_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, const VocabShare& share,
                           const VocabLossOptions& options = {});

}  // namespace levin::nn
