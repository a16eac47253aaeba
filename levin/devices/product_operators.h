#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

/// Operators that multiply: matrix products, convolutions and attention, torch's and Levin's. Those that call them
/// (linear, matmul, einsum) are not among them, so that nothing counts twice.
namespace levin {

enum class ProductKind : uint8_t {
  kMatmul,      // [..., m, k] x [..., k, n], or [..., m, k] x [k]
  kTransposed,  // [m, k] x [n, k]
  kConvolution,
  kConvolutionBackward,
  kAttention,  // query [..., L, D], key [..., S, D], value [..., S, E]
  kAttentionBackward,
  kPackedAttention,  // [B, T, 3, H, D]
  kPackedAttentionBackward,
};

struct ProductOperator {
  std::string_view name;
  ProductKind kind;
  /// The input that is the first factor.
  size_t first = 0;
};

/// The input of a convolution that is its stride; padding, dilation and `transposed` follow.
constexpr size_t first_number(ProductKind kind) {
  return kind == ProductKind::kConvolutionBackward ? 4 : 3;
}

/// Null where an operator is none of them.
const ProductOperator* find_product_operator(std::string_view name);

struct ProductInputs {
  /// Of every input; empty where it is no tensor.
  std::vector<std::vector<int64_t>> shapes = {};
  /// Of convolutions, whose inputs they are from first_number on.
  std::vector<int64_t> stride = {}, padding = {}, dilation = {};
  bool transposed = false;
  /// How many of the gradients of input and weight a backward computes.
  int gradients = 2;
};

/// A multiply-add is two. 0 where the shapes are not those of such an operator.
double product_flops(const ProductOperator& of, const ProductInputs& inputs);

}  // namespace levin
