#include "levin/devices/product_operators.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace levin {
namespace {

using Shape = std::vector<int64_t>;

constexpr std::array kProductOperators{
    ProductOperator{"aten::mm", ProductKind::kMatmul},
    ProductOperator{"aten::bmm", ProductKind::kMatmul},
    ProductOperator{"aten::mv", ProductKind::kMatmul},
    ProductOperator{"aten::addmm", ProductKind::kMatmul, 1},
    ProductOperator{"aten::_addmm_activation", ProductKind::kMatmul, 1},
    ProductOperator{"aten::baddbmm", ProductKind::kMatmul, 1},
    ProductOperator{"aten::addmv", ProductKind::kMatmul, 1},
    ProductOperator{"aten::_scaled_mm", ProductKind::kMatmul},
    ProductOperator{"levin::matmul", ProductKind::kMatmul},
    ProductOperator{"levin::matmul_and_sums", ProductKind::kMatmul},
    ProductOperator{"levin::matmul_into", ProductKind::kMatmul, 1},
    ProductOperator{"levin::fp8_mm", ProductKind::kTransposed},
    ProductOperator{"levin::linear_cross_entropy_step", ProductKind::kTransposed},
    ProductOperator{"aten::convolution", ProductKind::kConvolution},
    ProductOperator{"aten::convolution_backward", ProductKind::kConvolutionBackward},
    ProductOperator{"aten::_scaled_dot_product_flash_attention", ProductKind::kAttention},
    ProductOperator{"aten::_scaled_dot_product_flash_attention_for_cpu", ProductKind::kAttention},
    ProductOperator{"aten::_scaled_dot_product_efficient_attention", ProductKind::kAttention},
    ProductOperator{"aten::_scaled_dot_product_cudnn_attention", ProductKind::kAttention},
    ProductOperator{"aten::_scaled_dot_product_flash_attention_backward", ProductKind::kAttentionBackward, 1},
    ProductOperator{"aten::_scaled_dot_product_flash_attention_for_cpu_backward", ProductKind::kAttentionBackward, 1},
    ProductOperator{"aten::_scaled_dot_product_efficient_attention_backward", ProductKind::kAttentionBackward, 1},
    ProductOperator{"aten::_scaled_dot_product_cudnn_attention_backward", ProductKind::kAttentionBackward, 1},
    ProductOperator{"levin::short_attention", ProductKind::kPackedAttention},
    ProductOperator{"levin::short_attention_backward", ProductKind::kPackedAttentionBackward, 1},
    ProductOperator{"levin::causal_attention", ProductKind::kPackedAttention},
    ProductOperator{"levin::causal_attention_backward", ProductKind::kPackedAttentionBackward, 1},
};

double numbers_in(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), 1.0,
                         [](double a, int64_t b) { return a * static_cast<double>(b); });
}

double size_at(const Shape& shape, size_t at) {
  return static_cast<double>(shape[at]);
}

double matmul_flops(const Shape& a, const Shape& b) {
  if (a.size() < 2 || b.empty()) return 0;
  return 2 * numbers_in(a) * (b.size() < 2 ? 1.0 : static_cast<double>(b.back()));
}

double transposed_flops(const Shape& a, const Shape& b) {
  return b.empty() ? 0 : 2 * numbers_in(a) * size_at(b, 0);
}

/// Every number of a channel of `sites`, which is the output, or the input of a transposed one, meets all of the
/// weight.
double site_flops(const Shape& sites, const Shape& weight) {
  if (sites.size() < 2 || weight.empty()) return 0;
  double positions = size_at(sites, 0);
  for (size_t i = 2; i < sites.size(); ++i) positions *= size_at(sites, i);
  return 2 * positions * numbers_in(weight);
}

double convolution_flops(const Shape& input, const Shape& weight, const ProductInputs& given) {
  if (given.transposed) return site_flops(input, weight);
  if (input.size() < 3 || weight.size() != input.size()) return 0;
  const auto of = [](const Shape& list, size_t i, int64_t otherwise) {
    return list.empty() ? otherwise : list[std::min(i, list.size() - 1)];
  };
  Shape output{input[0], weight[0]};
  for (size_t i = 2; i < input.size(); ++i) {
    const int64_t step = std::max<int64_t>(of(given.stride, i - 2, 1), 1);
    const int64_t reach = of(given.dilation, i - 2, 1) * (weight[i] - 1) + 1;
    output.push_back((input[i] + 2 * of(given.padding, i - 2, 0) - reach) / step + 1);
  }
  return site_flops(output, weight);
}

/// Q K^T and P V; backward has five such products, three of them of the size of the first.
double attention_flops(const Shape& q, const Shape& k, const Shape& v, bool backward) {
  if (q.size() < 3 || k.size() != q.size() || v.size() != q.size()) return 0;
  const double d = static_cast<double>(q.back()), e = static_cast<double>(v.back());
  if (d == 0) return 0;
  const double pairs = 2 * numbers_in(q) / d * size_at(k, k.size() - 2);
  return pairs * (backward ? 3 * d + 2 * e : d + e);
}

double packed_attention_flops(const Shape& qkv, bool backward) {
  if (qkv.size() != 5) return 0;
  return (backward ? 10 : 4) * size_at(qkv, 0) * size_at(qkv, 3) * size_at(qkv, 1) * size_at(qkv, 1) * size_at(qkv, 4);
}

}  // namespace

const ProductOperator* find_product_operator(std::string_view name) {
  for (const auto& each : kProductOperators)
    if (each.name == name) return &each;
  return nullptr;
}

double product_flops(const ProductOperator& of, const ProductInputs& inputs) {
  const auto shape = [&](size_t at) { return at < inputs.shapes.size() ? inputs.shapes[at] : Shape(); };
  const auto first = shape(of.first), second = shape(of.first + 1), third = shape(of.first + 2);
  switch (of.kind) {
    case ProductKind::kMatmul:
      return matmul_flops(first, second);
    case ProductKind::kTransposed:
      return transposed_flops(first, second);
    case ProductKind::kConvolution:
      return convolution_flops(first, second, inputs);
    case ProductKind::kConvolutionBackward:  // of (gradient of the output, input, weight)
      return inputs.gradients * site_flops(inputs.transposed ? second : first, third);
    case ProductKind::kAttention:
    case ProductKind::kAttentionBackward:
      return attention_flops(first, second, third, of.kind == ProductKind::kAttentionBackward);
    case ProductKind::kPackedAttention:
    case ProductKind::kPackedAttentionBackward:
      return packed_attention_flops(first, of.kind == ProductKind::kPackedAttentionBackward);
  }
  return 0;
}

}  // namespace levin
