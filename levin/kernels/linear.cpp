#include "levin/kernels/linear.h"

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/kernels/activation_detail.h"
#include "levin/kernels/decode/few_rows.h"
#include "levin/kernels/fp8_layers.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/later_gradients.h"
#include "levin/kernels/linear_detail.h"
#include "levin/kernels/linear_launch.h"
#include "levin/kernels/matmul.h"
#include "levin/kernels/played_device.h"
#include "levin/kernels/weight_casts.h"

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

struct LinearOps {
  torch::Library names{torch::Library::FRAGMENT, "levin", std::nullopt, __FILE__, __LINE__};
  torch::Library cpu{torch::Library::IMPL, "levin", c10::DispatchKey::CPU, __FILE__, __LINE__};
  torch::Library meta{torch::Library::IMPL, "levin", c10::DispatchKey::Meta, __FILE__, __LINE__};
  torch::Library cuda{torch::Library::IMPL, "levin", c10::DispatchKey::CUDA, __FILE__, __LINE__};
  std::optional<c10::TypedOperatorHandle<decltype(sum_on_cpu)>> column_sum;

  LinearOps() {
    names.def("column_sum(Tensor x, ScalarType dtype) -> Tensor");
    cpu.impl("column_sum", sum_on_cpu);
    meta.impl("column_sum", sum_on_meta);
    register_linear_cuda(cuda);
    column_sum = c10::Dispatcher::singleton().findSchemaOrThrow("levin::column_sum", "").typed<decltype(sum_on_cpu)>();
  }
};

const LinearOps& linear_ops() {
  static const auto& ops = *new LinearOps();  // for the life of the process
  return ops;
}

Tensor column_sum_of(const Tensor& x, at::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return linear_ops().column_sum->call(x, dtype);
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

/// x times the transposed weight plus bias, all of one dtype.
Tensor multiplied(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!runs_matmul(x)) return at::linear(x, weight, bias);
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return at::_unsafe_view(matmul(rows_of(x), weight.t(), bias, x.scalar_type()), sizes);  // no view to autograd
}

/// Not by autocast: its cache would keep a bias without a gradient, since there is none inside of a forward.
Tensor narrow_bias(const Tensor& bias, at::ScalarType dtype) {
  auto cast = find_cast(bias, dtype);
  return cast.defined() ? cast : bias.to(dtype);
}

/// The gradients of a weight and, where it is defined, a bias.
std::tuple<Tensor, Tensor> of_parameters(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                         const Tensor& bias) {
  const auto dtype = weight.scalar_type();
  if (!bias.defined()) return {product(grad.t(), x, dtype), Tensor()};
  if (runs_matmul(grad)) return matmul_and_sums(grad.t(), x, dtype, bias.scalar_type());
  return {product(grad.t(), x, dtype), column_sum_of(grad, bias.scalar_type())};
}

/// What is asked of a layer's parameters in backward.
struct Wanted {
  bool weight = false, bias = false;
};

/// The gradients that are wanted. Both are undefined where the parameters get them when backward is over.
std::tuple<Tensor, Tensor> parameter_gradients(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                               const Tensor& bias, Wanted wanted) {
  const auto with = wanted.bias ? bias : Tensor();
  if (!wanted.weight) return {Tensor(), wanted.bias ? column_sum_of(grad, bias.scalar_type()) : Tensor()};
  auto* later = later_queue(weight, with);
  if (!later) return of_parameters(grad, rows_of(x), weight, with);
  later->run({grad, x}, [&] {
    auto [of_weight, of_bias] = of_parameters(grad, rows_of(x), weight, with);
    later->gradients.emplace_back(weight, std::move(of_weight));
    if (wanted.bias) later->gradients.emplace_back(bias, std::move(of_bias));
  });
  return {};
}

/// Gradients in operators that can be differentiated, of the inputs that need one.
variable_list gradients_again(AutogradContext* context, const Tensor& y, const variable_list& inputs,
                              const Tensor& grad, size_t arguments) {
  variable_list wanted, result(arguments);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (context->needs_input_grad(i)) wanted.push_back(inputs[i]);
  const auto found = torch::autograd::grad({y}, wanted, {grad}, std::nullopt, /*create_graph=*/true);
  for (size_t i = 0, next = 0; i < inputs.size(); ++i)
    if (context->needs_input_grad(i)) result[i] = found[next++];
  return result;
}

struct Linear : torch::autograd::Function<Linear> {
  /// `cast` is the weight in the dtype of x where that is another one; the gradient is the weight's.
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, const std::optional<Tensor>& cast) {
    // Weight and bias themselves cost nothing; a gradient of the gradient leads to the weight.
    context->save_for_backward({x, weight, cast.value_or(Tensor()), bias.value_or(Tensor())});
    return multiplied(x, cast ? *cast : weight, bias ? narrow_bias(*bias, x.scalar_type()) : Tensor());
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &bias = saved[3];
    const bool again = at::GradMode::is_enabled();
    const auto computed = !saved[2].defined() ? weight : again ? weight.to(x.scalar_type()) : saved[2];
    const auto grad = rows_of(grads[0]);
    const bool for_x = context->needs_input_grad(0), for_weight = context->needs_input_grad(1),
               for_bias = bias.defined() && context->needs_input_grad(2);
    Tensor grad_x, grad_weight, grad_bias;
    if (again) {  // in operators that can be differentiated
      if (for_x) grad_x = grad.mm(computed).reshape(x.sizes());
      if (for_weight) grad_weight = grad.t().mm(rows_of(x)).to(weight.scalar_type());
      if (for_bias) grad_bias = grad.sum(0).to(bias.scalar_type());
      return {grad_x, grad_weight, grad_bias, Tensor()};
    }
    const auto rows = grad.contiguous();
    // First, so that it overlaps with the other product.
    std::tie(grad_weight, grad_bias) = parameter_gradients(rows, x, weight, bias, {for_weight, for_bias});
    if (for_x) grad_x = product(rows, computed, x.scalar_type()).reshape(x.sizes());
    return {grad_x, grad_weight, grad_bias, Tensor()};
  }
};

struct LinearActivation : torch::autograd::Function<LinearActivation> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const std::optional<Tensor>& cast, int64_t kind) {
    const auto linear = multiplied(x, cast ? *cast : weight, narrow_bias(bias, x.scalar_type()));
    context->save_for_backward({x, weight, bias, cast.value_or(Tensor()), linear});
    context->saved_data["kind"] = kind;
    return run_activation(linear, static_cast<Activation>(kind));
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &bias = saved[2];
    const auto kind = static_cast<Activation>(context->saved_data["kind"].toInt());
    if (at::GradMode::is_enabled()) {
      const auto dtype = x.scalar_type();
      const auto y = plain_activation(at::linear(x, weight.to(dtype), bias.to(dtype)), kind);
      return gradients_again(context, y, {x, weight, bias}, grads[0], 5);
    }
    auto [of_linear, grad_bias] = activation_backward_and_sums(grads[0], saved[4], kind, bias.scalar_type());
    const auto rows = rows_of(of_linear);
    Tensor grad_x;
    const auto grad_weight =
        std::get<0>(parameter_gradients(rows, x, weight, {}, {.weight = context->needs_input_grad(1)}));
    if (context->needs_input_grad(0))
      grad_x = product(rows, saved[3].defined() ? saved[3] : weight, x.scalar_type()).reshape(x.sizes());
    if (!context->needs_input_grad(2)) grad_bias.reset();
    return {grad_x, grad_weight, grad_bias, Tensor(), Tensor()};
  }
};

/// Two layers with GELU (tanh form) between them: it is part of a product, and so is its backward.
struct GeluMlp : torch::autograd::Function<GeluMlp> {
  static constexpr auto kKind = Activation::kGeluTanh;

  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& up, const Tensor& up_bias,
                        const Tensor& down, const Tensor& down_bias, const std::optional<Tensor>& up_cast,
                        const std::optional<Tensor>& down_cast) {
    const auto dtype = x.scalar_type();
    const auto [hidden, inner] = matmul_gelu(rows_of(x), (up_cast ? *up_cast : up).t(), narrow_bias(up_bias, dtype));
    context->save_for_backward(
        {x, up, up_bias, down, down_bias, up_cast.value_or(Tensor()), down_cast.value_or(Tensor()), inner, hidden});
    auto sizes = x.sizes().vec();
    sizes.back() = down.size(0);
    return at::_unsafe_view(multiplied(hidden, down_cast ? *down_cast : down, narrow_bias(down_bias, dtype)), sizes);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &up = saved[1], &up_bias = saved[2], &down = saved[3], &down_bias = saved[4];
    const auto needs = [&](size_t input) { return context->needs_input_grad(input); };
    if (at::GradMode::is_enabled()) {
      const auto dtype = x.scalar_type();
      const auto hidden = plain_activation(at::linear(x, up.to(dtype), up_bias.to(dtype)), kKind);
      const auto y = at::linear(hidden, down.to(dtype), down_bias.to(dtype));
      return gradients_again(context, y, {x, up, up_bias, down, down_bias}, grads[0], 7);
    }
    const auto &up_cast = saved[5], &down_cast = saved[6], &inner = saved[7], &hidden = saved[8];
    const auto rows = rows_of(grads[0]).contiguous();
    variable_list result(7);
    std::tie(result[3], result[4]) = parameter_gradients(rows, hidden, down, down_bias, {needs(3), needs(4)});
    if (!needs(0) && !needs(1) && !needs(2)) return result;
    const auto of_inner = matmul_gelu_backward(rows, down_cast.defined() ? down_cast : down, inner);
    std::tie(result[1], result[2]) = parameter_gradients(of_inner, x, up, up_bias, {needs(1), needs(2)});
    if (needs(0)) result[0] = product(of_inner, up_cast.defined() ? up_cast : up, x.scalar_type()).reshape(x.sizes());
    return result;
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
  return Linear::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, cast);
}

Tensor fused_linear_activation(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& computed,
                               Activation kind) {
  const auto cast = computed.is_same(weight) ? std::nullopt : std::optional(computed.detach());
  return LinearActivation::apply(x, weight, bias, cast, static_cast<int64_t>(kind));
}

Tensor fused_gelu_mlp(const Tensor& x, const LinearWeights& up, const LinearWeights& down) {
  const auto cast = [](const LinearWeights& layer) {
    return layer.computed.is_same(layer.weight) ? std::nullopt : std::optional(layer.computed.detach());
  };
  return GeluMlp::apply(x, up.weight, up.bias, down.weight, down.bias, cast(up), cast(down));
}

bool fuses_mlp(std::string_view word) {
  static const std::vector<std::string> known{"apart", "fused"};
  if (word != known[0] && word != known[1]) fail_unknown("linear", "LEVIN_MLP", word, known);
  return word == "fused";
}

namespace {

std::atomic<bool>& fuses_mlp_here() {
  static std::atomic<bool> fuses = [] {
    const char* word = std::getenv("LEVIN_MLP");
    return fuses_mlp(word ? word : "apart");
  }();
  return fuses;
}

/// What a fused layer computes with.
struct Factors {
  Tensor in, weight;
};

/// The weight in the dtype of autocast, where there is one.
Tensor computed_weight(const Tensor& weight, std::optional<at::ScalarType> dtype) {
  if (!dtype) return weight;
  auto cast = find_cast(weight, *dtype);
  return cast.defined() ? cast : autocast_to(weight, *dtype);
}

/// Whether a layer can multiply `width` numbers of this kind with the weight, and add the bias.
bool layer_fits(const at::TensorOptions& in, int64_t width, const Tensor& computed, const Tensor& bias,
                bool is_autocast) {
  const auto is = [&](const Tensor& x) { return x.device() == in.device(); };
  const auto dtype = c10::typeMetaToScalarType(in.dtype());
  const auto bias_fits = [&] {
    return bias.dim() == 1 && bias.is_floating_point() && bias.size(0) == computed.size(0) && is(bias) &&
           (is_autocast || bias.scalar_type() == dtype);
  };
  return computed.scalar_type() == dtype && is(computed) && computed.dim() == 2 && width > 0 &&
         width == computed.size(1) && (!bias.defined() || bias_fits());
}

/// In the dtype of autocast; none where torch computes, or explains why it does not.
std::optional<Factors> factors(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!runs_fused(x)) return std::nullopt;
  const auto dtype = autocast_dtype(x);
  // Without a bias and in full precision torch's backward has nothing to lose.
  if (!bias.defined() && !at::isReducedFloatingType(dtype.value_or(x.scalar_type()))) return std::nullopt;
  Factors result{dtype ? autocast_to(x, *dtype) : x, computed_weight(weight, dtype)};
  const auto& in = result.in;
  const bool fits = in.dim() > 0 && layer_fits(in.options(), in.size(-1), result.weight, bias, dtype.has_value());
  return fits ? std::optional(result) : std::nullopt;
}

}  // namespace

void set_fuses_mlp(bool fuses) {
  fuses_mlp_here() = fuses;
}

}  // namespace detail

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (detail::runs_few_rows_linear(x, weight, bias)) return detail::few_rows_linear(x, weight, bias);
  if (const auto layer = fp8_layer(x, weight)) return fp8_linear(x, weight, bias, *layer);
  const auto factors = detail::factors(x, weight, bias);
  return factors ? detail::fused_linear(factors->in, weight, bias, factors->weight) : at::linear(x, weight, bias);
}

Tensor linear_activation(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation kind) {
  if (bias.defined() && !fp8_layer(x, weight))
    if (const auto factors = detail::factors(x, weight, bias); factors && detail::runs_matmul(factors->in))
      return detail::fused_linear_activation(factors->in, weight, bias, factors->weight, kind);
  return activation(linear(x, weight, bias), kind);
}

std::optional<Tensor> gelu_mlp(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
                               const Tensor& down_bias) {
  if (!detail::fuses_mlp_here() || !up_bias.defined() || !down_bias.defined()) return std::nullopt;
  if (fp8_layer(x, up) || fp8_layer(x, down)) return std::nullopt;
  const auto first = detail::factors(x, up, up_bias);
  if (!first || !detail::runs_matmul(first->in)) return std::nullopt;
  const auto dtype = detail::autocast_dtype(x);
  const auto second = detail::computed_weight(down, dtype);
  if (!detail::layer_fits(first->in.options(), up.size(0), second, down_bias, dtype.has_value())) return std::nullopt;
  return detail::fused_gelu_mlp(first->in, {up, up_bias, first->weight}, {down, down_bias, second});
}

Tensor column_sum(const Tensor& x, at::ScalarType dtype) {
  LEVIN_CHECK(x.dim() == 2, "[column_sum] needs a matrix [N, C], got ", x.sizes());
  if (!detail::runs_fused(x)) return x.sum(0).to(dtype);
  return detail::ColumnSumFunction::apply(x, dtype);
}

}  // namespace levin::kernels
