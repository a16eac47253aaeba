#pragma once

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

/// Turns the first half of each head against the second by the angles of its position: x [B, T, H, D], angles [2, T,
/// D / 2] are their cosines and sines. By operators of ATen, in x's dtype.
Tensor rotate(const Tensor& x, const Tensor& angles);

/// Rotary positions of packed projections qkv [B, T, 3, H, D]: queries and keys are turned as rotate() does, values are
/// copied, into a new packed tensor. angles [2, T, D / 2] get no gradient. On CUDA it is one kernel, which reads the
/// angles in float32 and computes in it.
Tensor rotary_qk(const Tensor& qkv, const Tensor& angles);

}  // namespace levin::kernels
