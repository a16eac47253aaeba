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

/// A linear layer of few rows, with the norm before it and what follows it:
///
///     y = residual + activation(norm(x) W^T + b)
///     y = residual + silu(norm(x) G^T + g) * (norm(x) W^T + b)      with a gate
struct RowLinear {
  /// [..., in].
  Tensor x;
  RowWeight weight, gate = {};
  /// [in]; without a weight there is no norm.
  Tensor norm_weight = {}, norm_bias = {};
  double eps = 0;
  bool rms = false;
  std::optional<Activation> activation = {};
  /// [..., out], or undefined.
  Tensor residual = {};
};

/// Whether one kernel does all of it: on CUDA, without gradients, up to 8 rows of half or bfloat16 that fit into shared
/// memory, all tensors of one dtype but the weights of "int8-weights", "fp8", and "int4" in groups of 128 or more.
/// LEVIN_DECODE_KERNELS=0 or LEVIN_ROW_LINEAR=0: never.
bool has_row_linear(const RowLinear& layer);
/// [..., out]. An Error where there is no kernel.
Tensor row_linear(const RowLinear& layer);

}  // namespace levin::kernels
