#pragma once

#include <optional>
#include <string>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace torch {
class Library;
}

namespace levin::kernels::detail {

using at::Tensor;

/// Attention of a whole head in the shared memory of a multiprocessor, for the sequences of vision transformers: 129 to
/// 208 tokens, heads of 64 numbers, 16 bits, neither causal nor with dropout, compute capability 9.0. Packed tensors
/// are read and written as they are.
bool short_attention_fits(const Tensor& qkv, bool causal, double dropout);

/// qkv [B, T, 3, H, 64] to [B, T, H, 64] and the logarithms of the sums of exponentials, float32 [B, H, T]. Not
/// differentiable.
std::tuple<Tensor, Tensor> short_attention(const Tensor& qkv);
/// The gradient of qkv, from that of the result, and where they are wanted the sums of its columns, [3 * H * 64] of
/// that dtype. Deterministic.
std::tuple<Tensor, Tensor> short_attention_backward(const Tensor& grad, const Tensor& qkv, const Tensor& out,
                                                    const Tensor& sums, std::optional<at::ScalarType> columns);

/// The name of the operator, which is registered then.
std::string short_attention_operator();

// ---- in short_attention_cuda.cpp

/// Adds the kernels of CUDA to the operators.
void register_short_attention_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
