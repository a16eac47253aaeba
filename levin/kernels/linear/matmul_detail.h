#pragma once

#include <optional>
#include <tuple>

#include "levin/kernels/linear/matmul.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// A product of float8 matrices: each is multiplied with a number in memory of the device, [1]; the bias [N] may be
/// undefined.
struct ScaledProduct {
  Tensor scale_a, scale_b, bias;
  at::ScalarType dtype;
  /// Sums keep fewer bits on the way.
  bool fast = false;
};
/// a [M, K] times b [K, N], the transpose of a contiguous matrix, on CUDA. In matmul_cuda.cpp; none where cuBLASLt has
/// no kernel for it, or torch shall compute.
std::optional<Tensor> scaled_matmul(const Tensor& a, const Tensor& b, const ScaledProduct& how);

/// In matmul_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void register_matmul_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
