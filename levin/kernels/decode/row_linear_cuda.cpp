#include <cstdlib>
#include <string_view>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "levin/core/error.h"
#include "levin/kernels/decode/row_linear.h"
#include "levin/kernels/fp8/fp8_layers.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/linear/constant_weights.h"
#include "levin/kernels/played_device.h"
#include "levin/kernels/quantized/quantized_detail.h"

namespace levin::kernels {
namespace {

bool is_off(const char* name) {
  const auto* word = std::getenv(name);
  return word && std::string_view(word) == "0";
}

/// A tensor of the dtype and device of x that a kernel can read sixteen bytes at a time.
bool goes_with(const Tensor& tensor, const Tensor& x) {
  return tensor.scalar_type() == x.scalar_type() && tensor.device() == x.device() && tensor.is_contiguous() &&
         detail::is_pack_aligned(tensor.const_data_ptr());
}

bool is_vector(const Tensor& tensor, const Tensor& x, int64_t size) {
  return tensor.dim() == 1 && tensor.size(0) == size && goes_with(tensor, x);
}

bool fits_squares(const Tensor& squares, const Tensor& x, int64_t rows) {
  return squares.scalar_type() == at::kFloat && squares.device() == x.device() && squares.is_contiguous() &&
         squares.dim() == 2 && squares.size(0) == rows;
}

/// Null pointers where the weight does not fit.
detail::PackedMatrix matrix_of(const RowWeight& of, const Tensor& x) {
  detail::PackedMatrix matrix;
  if (const auto* packed = of.quantized) {
    if (packed->codes.device() != x.device() || !detail::runs_skinny(x.view({-1, x.size(-1)}), *packed)) return matrix;
    detail::check_packed("row_linear", *packed);
    matrix = detail::matrix_on_device(*packed);
    if (!detail::is_pack_aligned(matrix.codes) || !detail::is_pack_aligned(matrix.scales)) matrix.codes = nullptr;
  } else if (of.weight.dim() == 2 && x.numel() <= detail::kSkinnyPlainRows * x.size(-1) && goes_with(of.weight, x) &&
             of.weight.size(1) % detail::kSkinnyColumns == 0) {
    matrix.codes = of.weight.const_data_ptr();
    matrix.rows = of.weight.size(0), matrix.columns = of.weight.size(1);
  }
  if (of.bias.defined() && !is_vector(of.bias, x, matrix.rows)) matrix.codes = nullptr;
  return matrix;
}

const void* pointer_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

detail::RowActivation activation_of(const RowLinear& layer) {
  if (layer.gate.defined()) return detail::RowActivation::kGatedSilu;
  if (!layer.activation) return detail::RowActivation::kNone;
  switch (*layer.activation) {
#define LEVIN_CASE(name) \
  case Activation::name: \
    return detail::RowActivation::name;
    LEVIN_ACTIVATIONS(LEVIN_CASE)
#undef LEVIN_CASE
  }
  levin::detail::fail("[row_linear] unknown activation");
}

bool takes(const Tensor& x) {
  return !at::GradMode::is_enabled() && x.is_cuda() && x.dim() > 0 && x.numel() > 0 &&
         (x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16) && goes_with(x, x) &&
         x.numel() <= detail::kSkinnyRows * x.size(-1) && !detail::autocast_dtype(x) &&
         !is_off("LEVIN_DECODE_KERNELS") && !is_off("LEVIN_ROW_LINEAR");
}

/// What the kernel is told, all but the result; nothing where it cannot do the layer.
std::optional<detail::SkinnyLinear> product_of(const RowLinear& layer) {
  const auto& x = layer.x;
  if (!takes(x)) return std::nullopt;
  const auto columns = x.size(-1);
  detail::SkinnyLinear product;
  product.matrix = matrix_of(layer.weight, x);
  product.m = x.numel() / columns;
  product.bias = pointer_of(layer.weight.bias);
  if (!product.matrix.codes || product.matrix.columns != columns) return std::nullopt;
  if (layer.weight.weight.defined() && fp8_layer(x, layer.weight.weight)) return std::nullopt;
  if (layer.gate.defined()) {
    product.up = product.matrix, product.up_bias = product.bias;
    product.matrix = matrix_of(layer.gate, x), product.bias = pointer_of(layer.gate.bias);
    const auto &gate = product.matrix, &up = product.up;
    if (!gate.codes || layer.activation || gate.format != up.format || gate.rows != up.rows ||
        gate.columns != up.columns || gate.group != up.group)
      return std::nullopt;
  }
  const auto rows = product.matrix.rows;
  if (layer.residual.defined() && (layer.residual.numel() != product.m * rows || !goes_with(layer.residual, x)))
    return std::nullopt;
  if (layer.norm_weight.defined() && (is_off("LEVIN_ROW_NORM") || layer.gate.defined() ||
                                      x.scalar_type() != at::kBFloat16 || !is_vector(layer.norm_weight, x, rows)))
    return std::nullopt;
  if (layer.squares.defined() && !fits_squares(layer.squares, x, product.m)) return std::nullopt;
  product.norm_weight = pointer_of(layer.norm_weight);
  if (layer.squares.defined()) {
    product.squares = layer.squares.const_data_ptr<float>();
    product.squares_count = static_cast<int>(layer.squares.size(1));
    product.eps = static_cast<float>(layer.eps);
  }
  product.residual = pointer_of(layer.residual);
  product.activation = activation_of(layer);
  product.x = x.const_data_ptr();
  product.early_matrix = ConstantWeights::here();
  product.type = detail::number_type("row_linear", x.scalar_type());
  return product;
}

}  // namespace

bool has_row_linear(const RowLinear& layer) {
  return product_of(layer).has_value();
}

NormedRows row_linear_normed(const RowLinear& layer) {
  auto product = product_of(layer);
  LEVIN_CHECK(product, "[row_linear] no kernel for x ", layer.x.toString(), " ", layer.x.sizes());
  const auto rows = product->matrix.rows;
  auto sizes = layer.x.sizes().vec();
  sizes.back() = rows;
  NormedRows result{at::empty(sizes, layer.x.options()), {}, {}};
  product->y = result.sum.mutable_data_ptr();
  if (layer.norm_weight.defined()) {
    result.weighted = at::empty(sizes, layer.x.options());
    result.squares = at::empty({product->m, detail::squares_of(rows)}, layer.x.options().dtype(at::kFloat));
    product->weighted = result.weighted.mutable_data_ptr();
    product->squares_out = result.squares.mutable_data_ptr<float>();
  }
  const c10::cuda::CUDAGuard guard(layer.x.device());
  C10_CUDA_CHECK(
      static_cast<cudaError_t>(detail::launch_skinny_linear(*product, c10::cuda::getCurrentCUDAStream().stream())));
  return result;
}

Tensor row_linear(const RowLinear& layer) {
  return row_linear_normed(layer).sum;
}

}  // namespace levin::kernels
