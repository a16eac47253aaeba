#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "levin/kernels/activation.h"
#include "levin/kernels/quantized/quantized_weight.h"

namespace levin::kernels {

/// The weight of a linear layer. Nothing is copied.
struct RowWeight {
  /// [out, in]; undefined where it is quantized.
  Tensor weight;
  const QuantizedWeight* quantized = nullptr;
  /// [out], or undefined.
  Tensor bias;

  bool defined() const { return weight.defined() || quantized; }
};

/// A linear layer of few rows, with what follows it:
///
///     y = residual + activation(x W^T + b)
///     y = residual + silu(x G^T + g) * (x W^T + b)      with a gate
struct RowLinear {
  /// [..., in].
  Tensor x;
  RowWeight weight, gate = {};
  std::optional<Activation> activation = {};
  /// [..., out], or undefined.
  Tensor residual = {};
  /// The weight [out] of an RMS norm that follows, or undefined; not with a gate, nor in half, where the product with
  /// it may overflow.
  Tensor norm_weight = {};
  /// Of x that is NormedRows::weighted: what goes with it. It stands for the norm then.
  Tensor squares = {};
  double eps = 0;
};

/// A result and the RMS norm that follows, which the next layer finishes:
///
///     auto [h, weighted, squares] = row_linear_normed({.x = x, .weight = first, .norm_weight = norm});
///     auto y = row_linear({.x = weighted, .weight = second, .squares = squares, .eps = 1e-5});
struct NormedRows {
  /// [..., out]: the result, and the result times the weight of the norm.
  Tensor sum, weighted = {};
  /// Of each row of the result, sums of squares, float.
  Tensor squares = {};
};

/// Whether one kernel does all of it: on CUDA, without gradients, up to 8 rows of half or bfloat16, all tensors of one
/// dtype but quantized weights, which are not of "int8". LEVIN_DECODE_KERNELS=0 or LEVIN_ROW_LINEAR=0: never;
/// LEVIN_ROW_NORM=0: none with norm_weight.
bool has_row_linear(const RowLinear& layer);
/// [..., out]. An Error where there is no kernel.
Tensor row_linear(const RowLinear& layer);
/// With the first half of the norm of `norm_weight`.
NormedRows row_linear_normed(const RowLinear& layer);

}  // namespace levin::kernels
