#pragma once

#include <tuple>

#include <ATen/core/Tensor.h>

#include "levin/kernels/cross_entropy/cross_entropy.h"

namespace levin::kernels {

/// Whether linear_cross_entropy_step has a kernel for x [N, D]: bfloat16, D a multiple of 8, compute capability 9.0, or
/// a meta tensor that stands for such.
bool has_linear_cross_entropy_step(const Tensor& x);

/// The cross entropy of logits x W^T, x [N, D] and W [C, D], with targets int64 [N], into losses float32 [N], without
/// the logits in memory. Rows of W from `classes` on are padding.
///
/// `grads` [N, C], where it is defined, becomes the gradient of the logits but for a factor of each row: with the
/// results (f [N] float32, y [N, D]), the gradient of x is f * (grads W), and that of W is grads^T y. Both are times
/// `scale`. Rows that are ignored are zero, and so are columns of padding. A
/// target that is no class is an error on the CPU and NaN on CUDA.
///
/// Autograd does not see it: it is a part of autograd functions.
std::tuple<Tensor, Tensor> linear_cross_entropy_step(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                                     const Tensor& losses, const Tensor& grads,
                                                     const CrossEntropyStep& options);

}  // namespace levin::kernels
