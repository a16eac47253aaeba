#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "levin/kernels/block_sparse/attention_launch.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

using at::Tensor;

/// The result [B, T, H * D], and of the kernel the logarithm of the sum of exponentials [B, H, T], infinite for
/// padding; of the operators of ATen, which compute them again, no numbers.
using BlockSparseResult = std::tuple<Tensor, Tensor>;

/// Numbers of gathered keys that are in memory at once.
inline constexpr int64_t kGatheredAtOnce = int64_t{1} << 25;

/// The operators by those of ATen, on any device. `mask` is bool [B, T]; the length of a block is T / (N of `seen`).
Tensor block_sparse_by_aten(const Tensor& qkv, const std::optional<Tensor>& mask, const Tensor& seen,
                            int64_t gathered = kGatheredAtOnce);
Tensor block_sparse_backward_by_aten(const Tensor& grad, const Tensor& qkv, const std::optional<Tensor>& mask,
                                     const Tensor& seen, int64_t gathered = kGatheredAtOnce);

/// Whether the kernels are made for these sizes, and LEVIN_BLOCK_SPARSE is not "torch".
bool runs_block_sparse_kernel(const Tensor& qkv, const Tensor& seen);

/// Adds the kernels of CUDA to the operators.
void register_block_sparse_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
