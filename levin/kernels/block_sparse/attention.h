#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace levin::kernels {

using at::Tensor;

/// Which blocks of keys each block of queries sees. The first and the last block see all, and are not in the tables. A
/// key that is seen twice weighs twice.
struct BlockPlan {
  int64_t block_size = 64;
  /// int32 [H, N - 2, W]: the blocks that blocks 1 to N - 2 see; -1, at the end of a row: none.
  Tensor seen;
  /// int32 [H, N + 1 + (N - 2) * W]: N + 1 places, then which of blocks 1 to N - 2 see a block, from one place to the
  /// next.
  Tensor seen_by;
};

/// The plan of lists [H][N - 2]: the blocks that blocks 1 to N - 2 see, each below N. For tensors of `device`.
BlockPlan block_plan(const std::vector<std::vector<std::vector<int32_t>>>& seen, int64_t block_size,
                     c10::Device device = c10::kCPU);

/// Self attention over blocks: qkv [B, T, 3, H, D], T = N * block_size, to [B, T, H * D]. mask [B, T], or undefined: 0
/// for padding, which adds -10000 to the score of a key, and whose queries give 0. For backward it keeps qkv, and
/// gathers and computes the rest again. On CUDA one kernel does it all for 16 bits, blocks of 64 tokens and heads of
/// 64; it keeps its result and a number for each query. LEVIN_BLOCK_SPARSE=torch: operators there, too.
///
///     auto plan = levin::kernels::block_plan(seen, 64, qkv.device());
///     auto mixed = levin::kernels::block_sparse_attention(qkv, mask, plan);
Tensor block_sparse_attention(const Tensor& qkv, const Tensor& mask, const BlockPlan& plan);

}  // namespace levin::kernels
