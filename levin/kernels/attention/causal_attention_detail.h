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

/// Causal attention for training decoders: 129 to 2048 tokens, heads of 64 numbers, 16 bits, no dropout, compute
/// capability 9.0. Packed tensors are read and written as they are.
bool causal_attention_fits(const Tensor& qkv, bool causal, double dropout);

/// qkv [B, T, 3, H, 64]: the result [B, T, H, 64], and the logarithms of the sums of exponentials, float32 [B, H, T].
std::tuple<Tensor, Tensor> causal_attention(const Tensor& qkv);
/// The operator that it calls, "levin::causal_attention".
std::string causal_attention_operator();

/// The gradient of qkv, from that of the result, the result itself and the logarithms; where they are wanted the sums
/// of its columns, [3 * H * 64] of that dtype. Deterministic.
std::tuple<Tensor, Tensor> causal_attention_backward(const Tensor& grad, const Tensor& qkv, const Tensor& out,
                                                     const Tensor& sums, std::optional<at::ScalarType> columns);

// ---- in causal_attention_cuda.cpp

/// Adds the kernels of CUDA to the operators.
void register_causal_attention_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
