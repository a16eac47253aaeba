#pragma once

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/tanh.h>

#include "levin/models/decoder_options.h"

/// What the sources of the decoder share.
namespace levin::models::detail {

using at::Tensor;

constexpr double kInitStd = 0.02;
/// Layers that write into the stream of hidden states start smaller the more of them there are.
inline double residual_std(const DecoderOptions& options) {
  return kInitStd / std::sqrt(2.0 * static_cast<double>(options.num_layers));
}

inline Tensor dropped(const Tensor& x, double p, bool training) {
  return p > 0 && training ? at::dropout(x, p, true) : x;
}

inline Tensor capped(const Tensor& x, double cap) {
  return cap > 0 ? at::tanh(x / cap) * cap : x;
}

/// [B, T, D] to [B, 1, D].
inline Tensor first_token(const Tensor& x) {
  return x.narrow(1, 0, 1);
}

}  // namespace levin::models::detail
