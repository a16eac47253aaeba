#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace levin {

using at::Tensor;

struct CrossEntropyOptions {
  /// A weight per class; undefined: all 1.
  Tensor weight = {};
  /// Targets of this class count for nothing.
  int64_t ignore_index = -100;
  /// "mean", "sum" or "none".
  std::string_view reduction = "mean";
  /// 0 is the plain loss, 1 would be the uniform distribution.
  double label_smoothing = 0;
};

/// Cross entropy of logits [N, C, ...] with class indices [N, ...] or class probabilities [N, C, ...].
///
///     auto loss = levin::cross_entropy(net(batch["image"]), batch["label"], {.label_smoothing = 0.1});
Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options = {});

/// Binary cross entropy of logits with targets in [0, 1], any equal shapes.
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target,
                                        std::string_view reduction = "mean");

/// Negative log likelihood of log probabilities [N, C, ...] with class indices [N, ...].
Tensor nll_loss(const Tensor& log_probs, const Tensor& target, std::string_view reduction = "mean");

/// Mean squared error; prediction and target must have the same shape.
Tensor mse_loss(const Tensor& prediction, const Tensor& target, std::string_view reduction = "mean");

/// Mean absolute error; prediction and target must have the same shape.
Tensor l1_loss(const Tensor& prediction, const Tensor& target, std::string_view reduction = "mean");

/// Share of rows [N, C] whose target [N] is among the k largest logits: a scalar on their device, without a gradient.
Tensor accuracy(const Tensor& logits, const Tensor& target, int64_t top_k = 1);

}  // namespace levin
