#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "levin/kernels/attention/packed_attention_launch.h"

/// What short_attention and causal_attention share: packed tensors of heads of 64 are read and written as they are.
struct CUstream_st;

namespace levin::kernels::detail {

using at::Tensor;

/// What a gradient needs besides its result.
struct PackedAttentionNeeds {
  int64_t scratch = 0;           // numbers
  int64_t parts_of_columns = 1;  // sums of columns of a sequence
};

/// The result [B, T, H, 64] of qkv [B, T, 3, H, 64], and the logarithms of the sums of exponentials [B, H, T]: what the
/// kernels of CUDA allocate, without memory.
std::tuple<Tensor, Tensor> packed_attention_meta(const Tensor& qkv);
/// The gradient of qkv, and the sums of its columns where they are wanted.
std::tuple<Tensor, Tensor> packed_attention_backward_meta(const Tensor& qkv, std::optional<at::ScalarType> columns,
                                                          const PackedAttentionNeeds& needs);

// ---- in packed_attention_cuda.cpp

/// Returns a cudaError_t.
using PackedAttentionKernel = int (*)(const PackedAttentionLaunch& launch, CUstream_st* stream);

std::tuple<Tensor, Tensor> packed_attention_cuda(const Tensor& qkv, PackedAttentionKernel kernel);

struct PackedAttentionGradient {
  Tensor grad, qkv, out, sums;
  std::optional<at::ScalarType> columns;
};
std::tuple<Tensor, Tensor> packed_attention_backward_cuda(const PackedAttentionGradient& of,
                                                          const PackedAttentionNeeds& needs,
                                                          PackedAttentionKernel kernel);

}  // namespace levin::kernels::detail
