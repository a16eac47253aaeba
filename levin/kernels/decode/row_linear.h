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
};

/// Whether one kernel does all of it: on CUDA, without gradients, up to 8 rows of half or bfloat16, all tensors of one
/// dtype but quantized weights, which are not of "int8". LEVIN_DECODE_KERNELS=0 or LEVIN_ROW_LINEAR=0: never.
bool has_row_linear(const RowLinear& layer);
/// [..., out]. An Error where there is no kernel.
Tensor row_linear(const RowLinear& layer);

}  // namespace levin::kernels
