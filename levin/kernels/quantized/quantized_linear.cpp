#include <algorithm>
#include <array>
#include <bit>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/kernels/fused_step/adam_8bit.h"
#include "levin/kernels/linear/matmul.h"
#include "levin/kernels/played_device.h"
#include "levin/kernels/quantized/quantized_detail.h"

namespace levin::kernels {
namespace detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

WeightFormat format_of(Quantization kind) {
  switch (kind) {
    case Quantization::kNf4:
      return WeightFormat::kNf4;
    case Quantization::kInt4:
      return WeightFormat::kInt4;
    case Quantization::kFp8:
      return WeightFormat::kFp8;
    case Quantization::kInt8:
    case Quantization::kInt8Weights:
      return WeightFormat::kInt8;
  }
  levin::detail::fail("[quantized_linear] unknown kind");
}

/// x [m, k] times a matrix [k, n], plus bias.
Tensor plain_product(const Tensor& x, const Tensor& matrix, const Tensor& bias) {
  if (runs_matmul(x)) return matmul(x, matrix, bias, x.scalar_type());
  return bias.defined() ? at::addmm(bias, x, matrix) : at::mm(x, matrix);
}

Tensor int8_product(const Tensor& a, const Tensor& b) {
  if (a.is_cpu()) return int8_product_cpu(a, b);
  // cuBLAS wants more than 16 rows, and sizes in eights.
  const auto more = [](int64_t size, int64_t least) { return std::max(least, (size + 7) / 8 * 8) - size; };
  const auto rows = more(a.size(0), 24), width = more(a.size(1), 8), columns = more(b.size(0), 8);
  const auto left = rows + width > 0 ? at::constant_pad_nd(a, {0, width, 0, rows}) : a;
  const auto right = columns + width > 0 ? at::constant_pad_nd(b, {0, width, 0, columns}) : b;
  return at::_int_mm(left, right.t()).slice(0, 0, a.size(0)).slice(1, 0, b.size(0));
}

/// What int8_linear allocates: its largest moment is that of the integers and their product with the scales.
Tensor int8_linear_on_meta(const Tensor& x, const QuantizedWeight& weight) {
  const std::array<int64_t, 2> sizes{x.size(0), weight.rows()};
  const auto quantized = at::empty(x.sizes(), x.options().dtype(at::kChar));
  const auto sum = at::empty(sizes, x.options().dtype(at::kInt)),
             scales = at::empty(sizes, x.options().dtype(at::kFloat));
  const auto scaled = at::empty(sizes, x.options().dtype(at::kFloat));
  return at::empty(sizes, x.options());
}

/// LLM.int8 in the arithmetic of bitsandbytes: rows of x in 8 bits by their largest number below the threshold; columns
/// with a larger one are left out there and multiplied in the dtype of x.
Tensor int8_linear(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias) {
  constexpr double kUnitOfProducts = 6.200124e-05;  // 1 / 127^2, as it is written there
  const auto codes = weight.codes.view(at::kChar);
  const auto largest_of_rows = weight.scales.view(at::kFloat).view({1, -1});
  auto narrow = x.to(at::kHalf);
  const bool splits = weight.options.threshold > 0;
  Tensor outliers, columns;
  if (splits) {
    outliers = narrow.abs() >= weight.options.threshold;
    narrow = narrow.masked_fill(outliers, 0);
    columns = outliers.any(0);
  }
  const auto largest = narrow.abs().amax({1}, /*keepdim=*/true).to(at::kFloat);
  const auto factor = (largest.reciprocal() * 127.0).masked_fill_(largest == 0, 0);
  auto quantized = (narrow.to(at::kFloat) * factor).round_().to(at::kChar);
  if (splits) quantized.masked_fill_(columns.unsqueeze(0), 0);
  auto sum = int8_product(quantized, codes) * (largest * largest_of_rows) * kUnitOfProducts;
  if (bias.defined()) sum = sum + bias;
  sum = sum.to(x.scalar_type());
  if (!splits) return sum;
  const auto indices = columns.nonzero().view({-1});
  if (indices.numel() == 0) return sum;
  const auto apart = codes.index_select(1, indices).to(at::kFloat) * largest_of_rows.view({-1, 1}) * kInt8Unit;
  return at::addmm(sum, x.index_select(1, indices), apart.to(x.scalar_type()).t());
}

Tensor product_of_rows(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias) {
  if (x.size(0) == 0) return at::empty({0, weight.rows()}, x.options());
  if (weight.options.kind == Quantization::kInt8)
    return x.is_meta() ? int8_linear_on_meta(x, weight) : int8_linear(x, weight, bias);
  if (runs_skinny(x, weight)) {
    if (x.is_meta()) return at::empty({x.size(0), weight.rows()}, x.options());
    return x.is_cuda() ? skinny_linear_cuda(x, weight, bias) : skinny_linear_cpu(x, weight, bias);
  }
  if (runs_tiles(x, weight))
    return x.is_meta() ? at::empty({x.size(0), weight.rows()}, x.options()) : tile_linear_cuda(x, weight, bias);
  return plain_product(x, dequantize(weight, x.scalar_type()).t(), bias);
}

struct QuantizedLinear : torch::autograd::Function<QuantizedLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const std::optional<Tensor>& bias,
                        const QuantizedWeight& weight) {
    context->save_for_backward({weight.codes, weight.scales, weight.nested});
    context->saved_data["options"] =
        std::vector<int64_t>{static_cast<int64_t>(weight.options.kind), weight.options.group, weight.columns,
                             static_cast<int64_t>(x.scalar_type())};
    context->saved_data["bias"] = static_cast<int64_t>(bias ? bias->scalar_type() : at::ScalarType::Undefined);
    const auto rows = x.reshape({-1, weight.columns}).contiguous();
    auto sizes = x.sizes().vec();
    sizes.back() = weight.rows();
    return at::_unsafe_view(product_of_rows(rows, weight, bias ? bias->to(x.scalar_type()) : Tensor()), sizes);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto numbers = context->saved_data["options"].toIntVector();
    QuantizedWeight weight{
        {.kind = static_cast<Quantization>(numbers[0]), .group = numbers[1]}, numbers[2], saved[0], saved[1], saved[2]};
    Tensor grad_x, grad_bias;
    auto sizes = grads[0].sizes().vec();
    const auto grad = grads[0].reshape({-1, sizes.back()});
    if (context->needs_input_grad(0)) {
      sizes.back() = weight.columns;
      const auto matrix = dequantize(weight, grad.scalar_type());
      // The product of torch can be differentiated again.
      const auto product =
          at::GradMode::is_enabled() ? at::mm(grad, matrix) : plain_product(grad.contiguous(), matrix, {});
      grad_x = product.reshape(sizes).to(static_cast<at::ScalarType>(numbers[3]));
    }
    const auto bias_dtype = static_cast<at::ScalarType>(context->saved_data["bias"].toInt());
    if (bias_dtype != at::ScalarType::Undefined && context->needs_input_grad(1)) grad_bias = grad.sum(0).to(bias_dtype);
    return {grad_x, grad_bias, Tensor()};
  }
};

}  // namespace

PackedMatrix packed_matrix(const QuantizedWeight& weight) {
  PackedMatrix matrix;
  matrix.codes = weight.codes.const_data_ptr();
  matrix.scales = weight.scales.const_data_ptr();
  if (weight.nested.defined()) {
    matrix.nested = static_cast<const float*>(weight.nested.const_data_ptr());
    if (weight.codes.is_cpu()) matrix.nested_codes = dynamic_codes(true).data();
  }
  matrix.rows = weight.rows(), matrix.columns = weight.columns, matrix.group = weight.options.group;
  matrix.format = format_of(weight.options.kind);
  return matrix;
}

void check_packed(const char* operation, const QuantizedWeight& weight) {
  const auto is_bytes = [&](const Tensor& tensor) {
    return tensor.defined() && tensor.scalar_type() == at::kByte && tensor.is_contiguous() &&
           tensor.device() == weight.codes.device();
  };
  LEVIN_CHECK(weight.codes.defined(), "[", operation, "] the weight is empty");
  LEVIN_CHECK(
      is_bytes(weight.codes) && is_bytes(weight.scales) && (!weight.nested.defined() || is_bytes(weight.nested)), "[",
      operation, "] the tensors of a quantized weight must be bytes on one device; codes are ", weight.codes.toString(),
      ", scales ", weight.scales.toString());
}

/// Whether tensor cores multiply the packed numbers with x of this dtype.
bool has_tiles(at::ScalarType dtype, const QuantizedWeight& weight) {
  const bool grouped = weight.options.has_groups();
  return (dtype == at::kHalf || dtype == at::kBFloat16) && weight.columns % kPackedGroup == 0 &&
         (!grouped || std::has_single_bit(static_cast<uint64_t>(weight.options.group / kPackedGroup)));
}

bool runs_skinny(const Tensor& rows, const QuantizedWeight& weight) {
  if (rows.size(0) > kSkinnyRows || weight.options.kind == Quantization::kInt8) return false;
  const auto dtype = rows.scalar_type();
  return kernel_device(rows) == c10::kCUDA ? has_tiles(dtype, weight) : dtype != at::kDouble;
}

bool runs_tiles(const Tensor& rows, const QuantizedWeight& weight) {
  return rows.size(0) > kSkinnyRows && rows.size(0) <= kTileRows && weight.options.kind != Quantization::kInt8 &&
         kernel_device(rows) == c10::kCUDA && runs_hopper_kernels(rows) && has_tiles(rows.scalar_type(), weight);
}

bool runs_skinny(const Tensor& rows, const Tensor& weight) {
  const auto dtype = rows.scalar_type();
  return rows.is_cuda() && rows.size(0) <= kSkinnyPlainRows && (dtype == at::kHalf || dtype == at::kBFloat16) &&
         weight.scalar_type() == dtype && weight.device() == rows.device() && weight.dim() == 2 &&
         weight.is_contiguous() && weight.size(1) % kSkinnyColumns == 0 && is_pack_aligned(weight.const_data_ptr());
}

}  // namespace detail

Tensor dequantize(const QuantizedWeight& weight, at::ScalarType dtype) {
  detail::check_packed("dequantize", weight);
  const at::NoGradGuard no_grad;
  if (weight.codes.is_meta()) return at::empty({weight.rows(), weight.columns}, weight.codes.options().dtype(dtype));
  return weight.codes.is_cuda() ? detail::dequantize_cuda(weight, dtype) : detail::dequantize_cpu(weight, dtype);
}

Tensor quantized_linear(const Tensor& given, const QuantizedWeight& weight, const Tensor& bias) {
  detail::check_packed("quantized_linear", weight);
  LEVIN_CHECK(given.dim() > 0 && given.is_floating_point() && given.size(-1) == weight.columns &&
                  given.device() == weight.codes.device(),
              "[quantized_linear] x must be floating numbers [..., ", weight.columns, "] on ", weight.codes.device(),
              ", got ", given.toString(), " ", given.sizes(), " on ", given.device());
  const auto dtype = detail::autocast_dtype(given);
  const auto x = dtype ? detail::autocast_to(given, *dtype) : given;
  return detail::QuantizedLinear::apply(x, bias.defined() ? std::optional(bias) : std::nullopt, weight);
}

}  // namespace levin::kernels
