#pragma once

#include <optional>
#include <tuple>

#include <c10/core/ScalarType.h>

#include "levin/kernels/norm/residual_norm.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// Output, sum (undefined without a branch), mean (undefined where rms), rstd, and the state of the random numbers
/// (undefined without dropout).
using NormResults = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
/// Gradients of the sum, of the branch where it is another tensor, of weight and bias; and, where they are wanted and
/// the kernel has them, the sums of columns of the branch's gradient.
using NormGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

/// As the operators, whatever the device; `output` is the dtype of the output. Dropout is for CUDA alone.
NormedStream fused_residual_norm(const Tensor& stream, const Tensor& branch, const Tensor& weight, const Tensor& bias,
                                 double eps, bool rms, double dropout, at::ScalarType output);

/// In residual_norm_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void register_residual_norm_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
