#include "levin/kernels/linear/linear.h"

#include <array>
#include <optional>
#include <tuple>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/kernels/activation_detail.h"
#include "levin/kernels/decode/few_rows.h"
#include "levin/kernels/fp8/fp8_layers.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/linear/known_sums.h"
#include "levin/kernels/linear/linear_detail.h"
#include "levin/kernels/linear/linear_launch.h"
#include "levin/kernels/linear/matmul.h"
#include "levin/kernels/linear/weight_casts.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"
#include "levin/kernels/quantized/quantized_detail.h"
#include "levin/kernels/recomputation.h"

namespace levin::kernels {
namespace detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- column_sum

Tensor sum_on_cpu(const Tensor& x, at::ScalarType dtype) {
  return x.sum(0).to(dtype);
}

Tensor sum_on_meta(const Tensor& x, at::ScalarType dtype) {
  auto result = at::empty({x.size(1)}, x.options().dtype(dtype));
  if (x.numel() == 0) return result;
  const auto parts =
      column_sum_parts(x.size(0), x.size(1), number_type("column_sum", x.scalar_type()), kPlayedProcessors);
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (parts > 1) (void)at::empty({parts, x.size(1)}, x.options().dtype(wide));  // gone when the sum is there
  return result;
}

struct LinearOps : Operators {
  Operator<decltype(sum_on_cpu)> column_sum =
      add("column_sum(Tensor x, ScalarType dtype) -> Tensor", sum_on_meta, sum_on_cpu);

  LinearOps() { register_linear_cuda(cuda); }
};

Tensor column_sum_of(const Tensor& x, at::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return operators<LinearOps>().column_sum.call(x, dtype);
}

// ---- linear

/// A product whose result may be wider than its factors.
Tensor product(const Tensor& a, const Tensor& b, at::ScalarType dtype) {
  if (runs_matmul(a)) return matmul(a, b, {}, dtype);
  if (dtype == a.scalar_type()) return at::mm(a, b);
  if (a.is_meta()) return at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype));
  if (a.is_cuda() && dtype == at::kFloat) return at::mm(a, b, dtype);
  return at::mm(a, b).to(dtype);
}

Tensor rows_of(const Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

std::vector<int64_t> sizes_of_result(const Tensor& x, const Tensor& weight) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return sizes;
}

/// In the memory of one number.
Tensor without_values(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty_strided(sizes, std::vector<int64_t>(sizes.size(), 0), options);
}

/// x times the transposed weight plus bias, all of one dtype.
Tensor multiplied(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!runs_matmul(x)) return at::linear(x, weight, bias);
  // No view to autograd.
  return at::_unsafe_view(matmul(rows_of(x), weight.t(), bias, x.scalar_type()), sizes_of_result(x, weight));
}

/// Not by autocast: its cache would keep a bias without a gradient, since there is none inside of a forward.
Tensor narrow_bias(const Tensor& bias, at::ScalarType dtype) {
  auto cast = find_cast(bias, dtype);
  return cast.defined() ? cast : bias.to(dtype);
}

struct Linear : torch::autograd::Function<Linear> {
  /// `cast` is the weight in the dtype of x where that is another one; the gradient is the weight's. A `spare` result
  /// has no values.
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, const std::optional<Tensor>& cast, bool spare) {
    // The weight itself costs nothing; a gradient of the gradient leads to it.
    context->save_for_backward({x, weight, cast.value_or(Tensor())});
    context->saved_data["bias"] = static_cast<int64_t>(bias ? bias->scalar_type() : at::ScalarType::Undefined);
    if (spare) return without_values(sizes_of_result(x, weight), x.options());
    return multiplied(x, cast ? *cast : weight, bias ? narrow_bias(*bias, x.scalar_type()) : Tensor());
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const auto bias_dtype = static_cast<at::ScalarType>(context->saved_data["bias"].toInt());
    const bool again = at::GradMode::is_enabled();
    const auto computed = !saved[2].defined() ? weight : again ? weight.to(x.scalar_type()) : saved[2];
    const auto grad = rows_of(grads[0]);
    const bool for_x = context->needs_input_grad(0), for_weight = context->needs_input_grad(1),
               for_bias = bias_dtype != at::ScalarType::Undefined && context->needs_input_grad(2);
    Tensor grad_x, grad_weight, grad_bias;
    if (again) {  // in operators that can be differentiated
      if (for_x) grad_x = grad.mm(computed).reshape(x.sizes());
      if (for_weight) grad_weight = grad.t().mm(rows_of(x)).to(weight.scalar_type());
      if (for_bias) grad_bias = grad.sum(0).to(bias_dtype);
      return {grad_x, grad_weight, grad_bias, Tensor(), Tensor()};
    }
    const auto rows = grad.contiguous();
    if (for_bias) grad_bias = take_column_sums(grads[0], bias_dtype);
    if (for_x) grad_x = product(rows, computed, x.scalar_type()).reshape(x.sizes());
    if (for_weight && for_bias && !grad_bias.defined() && runs_matmul(rows)) {
      std::tie(grad_weight, grad_bias) = matmul_and_sums(rows.t(), rows_of(x), weight.scalar_type(), bias_dtype);
    } else {
      if (for_weight) grad_weight = product(rows.t(), rows_of(x), weight.scalar_type());
      if (for_bias && !grad_bias.defined()) grad_bias = column_sum_of(rows, bias_dtype);
    }
    return {grad_x, grad_weight, grad_bias, Tensor(), Tensor()};
  }
};

struct ColumnSumFunction : torch::autograd::Function<ColumnSumFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, at::ScalarType dtype) {
    context->saved_data["rows"] = x.size(0);
    context->saved_data["dtype"] = static_cast<int64_t>(x.scalar_type());
    return column_sum_of(x, dtype);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto dtype = static_cast<at::ScalarType>(context->saved_data["dtype"].toInt());
    return {grads[0].to(dtype).unsqueeze(0).expand({context->saved_data["rows"].toInt(), -1}), Tensor()};
  }
};

}  // namespace

Tensor fused_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& computed) {
  const auto cast = computed.is_same(weight) ? std::nullopt : std::optional(computed.detach());
  const bool saves = at::GradMode::is_enabled() &&
                     (x.requires_grad() || weight.requires_grad() || (bias.defined() && bias.requires_grad()));
  const bool spare = saves && is_result_spare(std::array{x, weight, cast.value_or(Tensor())});
  return Linear::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, cast, spare);
}

Tensor fused_linear_activation(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& computed,
                               Activation kind) {
  // Two nodes of autograd: what the activation has kept is gone when the layer's products run.
  return fused_activation(fused_linear(x, weight, bias, computed), kind, bias.scalar_type());
}

namespace {

/// What a fused layer computes with.
struct Factors {
  Tensor in, weight;
};

/// In the dtype of autocast; none where torch computes, or explains why it does not.
std::optional<Factors> factors(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!runs_fused(x)) return std::nullopt;
  const auto dtype = autocast_dtype(x);
  // Without a bias and in full precision torch's backward has nothing to lose.
  if (!bias.defined() && !at::isReducedFloatingType(dtype.value_or(x.scalar_type()))) return std::nullopt;
  Factors result{x, weight};
  if (dtype) {
    result.in = autocast_to(x, *dtype);
    result.weight = find_cast(weight, *dtype);
    if (!result.weight.defined()) result.weight = autocast_to(weight, *dtype);
  }
  const auto& in = result.in;
  const auto bias_fits = [&] {
    return bias.dim() == 1 && bias.is_floating_point() && bias.size(0) == weight.size(0) &&
           bias.device() == in.device() && (dtype || bias.scalar_type() == in.scalar_type());
  };
  const bool fits = in.scalar_type() == result.weight.scalar_type() && in.device() == weight.device() &&
                    weight.dim() == 2 && in.dim() > 0 && in.size(-1) > 0 && in.size(-1) == weight.size(1) &&
                    (!bias.defined() || bias_fits());
  return fits ? std::optional(result) : std::nullopt;
}

}  // namespace

/// The product of few rows without a gradient, as when a language model writes.
std::optional<Tensor> skinny_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (at::GradMode::is_enabled() || !x.is_cuda() || x.dim() == 0 || x.numel() == 0 || weight.dim() != 2 ||
      x.size(-1) != weight.size(1) || x.numel() > kSkinnyPlainRows * x.size(-1) || autocast_dtype(x) || !runs_matmul(x))
    return std::nullopt;
  const bool bias_fits = !bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0) &&
                                             bias.scalar_type() == x.scalar_type() && bias.device() == x.device());
  const auto rows = rows_of(x);
  if (!bias_fits || !runs_skinny(rows, weight)) return std::nullopt;
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return skinny_linear_cuda(rows, weight, bias).view(sizes);
}

}  // namespace detail

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (detail::runs_few_rows_linear(x, weight, bias)) return detail::few_rows_linear(x, weight, bias);
  if (const auto layer = fp8_layer(x, weight)) return fp8_linear(x, weight, bias, *layer);
  if (auto few = detail::skinny_linear(x, weight, bias)) return std::move(*few);
  const auto factors = detail::factors(x, weight, bias);
  return factors ? detail::fused_linear(factors->in, weight, bias, factors->weight) : at::linear(x, weight, bias);
}

Tensor linear_activation(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation kind) {
  if (bias.defined() && !fp8_layer(x, weight) && at::GradMode::is_enabled())
    if (const auto factors = detail::factors(x, weight, bias); factors && detail::runs_matmul(factors->in))
      return detail::fused_linear_activation(factors->in, weight, bias, factors->weight, kind);
  return activation(linear(x, weight, bias), kind);
}

Tensor column_sum(const Tensor& x, at::ScalarType dtype) {
  LEVIN_CHECK(x.dim() == 2, "[column_sum] needs a matrix [N, C], got ", x.sizes());
  if (!detail::runs_fused(x)) return x.sum(0).to(dtype);
  return detail::ColumnSumFunction::apply(x, dtype);
}

}  // namespace levin::kernels
