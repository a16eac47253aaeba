#include <ATen/Functions.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/kernels/fp8/fp8_layers.h"
#include "levin/kernels/linear/weight_casts.h"

namespace levin::kernels {
namespace {

using detail::Fp8Context;
using detail::Fp8ContextPtr;
using detail::Fp8Operand;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The dtype of results, as under autocast to bfloat16.
constexpr auto kResult = at::kBFloat16;

/// A context in the saved data of a node.
struct HeldContext final : torch::CustomClassHolder {
  explicit HeldContext(Fp8ContextPtr held) : context(std::move(held)) {}
  Fp8ContextPtr context;
};

Fp8Cast cast_weight(Fp8Context& context, int64_t index, const Tensor& weight, bool columns) {
  auto& layers = *context.layers;
  // Sharded weights are gone after their unit; so must be their casts.
  if (layers.casts_weights_again()) return layers.cast(context, index, Fp8Operand::kWeight, weight, {.columns = false});
  auto& kept = context.weights[weight.unsafeGetTensorImpl()];
  if (!kept.rows.defined() || (columns && !kept.columns.defined()))
    kept = layers.cast(context, index, Fp8Operand::kWeight, weight, {.columns = columns});
  return kept;
}

Tensor cast_bias(Fp8Context& context, const std::optional<Tensor>& bias) {
  if (!bias || !bias->defined()) return {};
  if (bias->scalar_type() == kResult) return *bias;
  auto& kept = context.biases[bias->unsafeGetTensorImpl()];
  if (!kept.defined()) kept = detail::find_cast(*bias, kResult);
  if (!kept.defined()) kept = bias->to(kResult);
  return kept;
}

void check_first_derivative() {
  LEVIN_CHECK(!at::GradMode::is_enabled(),
              "[fp8_linear] precision \"fp8-mixed\" has no second derivatives (create_graph); use \"bf16-mixed\"");
}

/// Undefined: it has none.
int64_t dtype_of_gradient(const std::optional<Tensor>& bias) {
  const bool wanted = bias && bias->defined() && bias->requires_grad();
  return static_cast<int64_t>(wanted ? bias->scalar_type() : at::ScalarType::Undefined);
}

Tensor rows_of(const Tensor& x) {
  return x.reshape({-1, x.size(-1)}).contiguous();
}

/// Rows with the leading sizes of another tensor; no view that autograd would know.
Tensor with_sizes(const Tensor& rows, const Tensor& like) {
  auto sizes = like.sizes().vec();
  sizes.back() = rows.size(1);
  return at::_unsafe_view(rows, sizes);
}

struct Fp8Linear : torch::autograd::Function<Fp8Linear> {
  // What a graph needs is the input and the weight in the layouts of the backward products.
  static Tensor forward(AutogradContext* node, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        const Fp8ContextPtr& context, int64_t index, bool for_x, bool for_weight) {
    auto& layers = *context->layers;
    const auto matrix = rows_of(x);
    const auto input = layers.cast(*context, index, Fp8Operand::kInput, matrix, {.columns = for_weight});
    const auto factor = cast_weight(*context, index, weight, for_x);
    const auto result = fp8_mm(input.rows, factor.rows, input.inverse, factor.inverse, cast_bias(*context, bias),
                               kResult, /*fast_accumulation=*/true);

    const bool again = layers.casts_weights_again();
    variable_list saved(4);
    if (for_weight) saved[0] = input.columns, saved[1] = input.column_inverse;
    if (for_x) saved[2] = again ? weight.detach() : factor.columns;
    if (for_x && !again) saved[3] = factor.column_inverse;
    node->save_for_backward(std::move(saved));
    auto& data = node->saved_data;
    data["context"] = c10::IValue::make_capsule(c10::make_intrusive<HeldContext>(context));
    data["index"] = index;
    data["x"] = static_cast<int64_t>(x.scalar_type());
    data["weight"] = static_cast<int64_t>(weight.scalar_type());
    data["bias"] = dtype_of_gradient(bias);
    return with_sizes(result, x);
  }

  static variable_list backward(AutogradContext* node, variable_list grads) {
    check_first_derivative();
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    auto& data = node->saved_data;
    const auto dtype_of = [&](const char* name) { return static_cast<at::ScalarType>(data[name].toInt()); };
    const auto context = c10::static_intrusive_pointer_cast<HeldContext>(data["context"].toCapsule())->context;
    auto& layers = *context->layers;
    const auto index = data["index"].toInt();
    const auto saved = node->get_saved_variables();
    const bool for_weight = saved[0].defined(), for_x = saved[2].defined();

    const auto& given = grads[0];
    const auto matrix = rows_of(given);
    const auto bias = dtype_of("bias");
    const auto sums = bias == at::ScalarType::Undefined ? std::nullopt : std::optional(bias);
    Tensor grad_x, grad_weight, grad_bias;
    if (for_x || for_weight) {
      auto gradient = layers.cast(*context, index, Fp8Operand::kGradient, matrix,
                                  {.rows = for_x, .columns = for_weight, .sums = sums});
      grad_bias = gradient.sums;
      if (for_x) {
        Fp8Cast factor{.columns = saved[2], .column_inverse = saved[3]};
        if (layers.casts_weights_again())
          factor = layers.cast(*context, index, Fp8Operand::kWeight, saved[2], {.rows = false});
        grad_x = with_sizes(fp8_mm(gradient.rows, factor.columns, gradient.inverse, factor.column_inverse, {},
                                   dtype_of("x"), /*fast_accumulation=*/false),
                            given);
        gradient.rows.reset();
      }
      if (for_weight)
        grad_weight = fp8_mm(gradient.columns, saved[0], gradient.column_inverse, saved[1], {}, dtype_of("weight"),
                             /*fast_accumulation=*/false);
    } else if (sums) {
      grad_bias = at::sum(matrix, {0}, /*keepdim=*/false, bias);
    }
    return {grad_x, grad_weight, grad_bias, {}, {}, {}, {}};
  }
};

struct Fp8Mlp : torch::autograd::Function<Fp8Mlp> {
  enum Saved { kX, kXInverse, kUp, kUpInverse, kHidden, kActivated, kActivatedInverse, kDown, kDownInverse, kSaved };

  static Tensor forward(AutogradContext* node, const Tensor& x, const Tensor& up, const std::optional<Tensor>& up_bias,
                        const Tensor& down, const std::optional<Tensor>& down_bias, const Fp8ContextPtr& context,
                        int64_t up_index, int64_t down_index, int64_t kind, bool for_x, bool grad) {
    auto& layers = *context->layers;
    const auto input = layers.cast(*context, up_index, Fp8Operand::kInput, rows_of(x), {.columns = grad});
    const auto first = cast_weight(*context, up_index, up, for_x);
    const auto hidden = fp8_mm(input.rows, first.rows, input.inverse, first.inverse, cast_bias(*context, up_bias),
                               kResult, /*fast_accumulation=*/true);
    const auto activated = layers.cast(*context, down_index, Fp8Operand::kInput, hidden,
                                       {.columns = grad, .activation = static_cast<Activation>(kind)});
    const auto second = cast_weight(*context, down_index, down, grad);
    const auto result = fp8_mm(activated.rows, second.rows, activated.inverse, second.inverse,
                               cast_bias(*context, down_bias), kResult, /*fast_accumulation=*/true);
    if (grad) {
      variable_list saved(kSaved);
      saved[kX] = input.columns, saved[kXInverse] = input.column_inverse;
      if (for_x) saved[kUp] = first.columns, saved[kUpInverse] = first.column_inverse;
      saved[kHidden] = hidden;
      saved[kActivated] = activated.columns, saved[kActivatedInverse] = activated.column_inverse;
      saved[kDown] = second.columns, saved[kDownInverse] = second.column_inverse;
      node->save_for_backward(std::move(saved));
    }
    auto& data = node->saved_data;
    data["context"] = c10::IValue::make_capsule(c10::make_intrusive<HeldContext>(context));
    data["up_index"] = up_index, data["down_index"] = down_index, data["kind"] = kind;
    data["x"] = static_cast<int64_t>(x.scalar_type());
    data["up"] = static_cast<int64_t>(up.scalar_type()), data["down"] = static_cast<int64_t>(down.scalar_type());
    data["up_bias"] = dtype_of_gradient(up_bias), data["down_bias"] = dtype_of_gradient(down_bias);
    return with_sizes(result, x);
  }

  static variable_list backward(AutogradContext* node, variable_list grads) {
    check_first_derivative();
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    auto& data = node->saved_data;
    const auto dtype_of = [&](const char* name) { return static_cast<at::ScalarType>(data[name].toInt()); };
    const auto sums_of = [&](const char* name) {
      return dtype_of(name) == at::ScalarType::Undefined ? std::nullopt : std::optional(dtype_of(name));
    };
    const auto context = c10::static_intrusive_pointer_cast<HeldContext>(data["context"].toCapsule())->context;
    auto& layers = *context->layers;
    auto saved = node->get_saved_variables();
    const bool for_x = saved[kUp].defined();

    auto outer = layers.cast(*context, data["down_index"].toInt(), Fp8Operand::kGradient, rows_of(grads[0]),
                             {.sums = sums_of("down_bias")});
    const auto grad_down = fp8_mm(outer.columns, saved[kActivated], outer.column_inverse, saved[kActivatedInverse], {},
                                  dtype_of("down"), /*fast_accumulation=*/false);
    outer.columns.reset(), saved[kActivated].reset();
    auto grad_activated = fp8_mm(outer.rows, saved[kDown], outer.inverse, saved[kDownInverse], {}, kResult,
                                 /*fast_accumulation=*/false);
    outer.rows.reset();
    auto inner = layers.cast(*context, data["up_index"].toInt(), Fp8Operand::kGradient, grad_activated,
                             {.rows = for_x,
                              .activation = static_cast<Activation>(data["kind"].toInt()),
                              .derivative_at = saved[kHidden],
                              .sums = sums_of("up_bias")});
    grad_activated.reset(), saved[kHidden].reset();
    const auto grad_up = fp8_mm(inner.columns, saved[kX], inner.column_inverse, saved[kXInverse], {}, dtype_of("up"),
                                /*fast_accumulation=*/false);
    inner.columns.reset();
    Tensor grad_x;
    if (for_x)
      grad_x = with_sizes(fp8_mm(inner.rows, saved[kUp], inner.inverse, saved[kUpInverse], {}, dtype_of("x"),
                                 /*fast_accumulation=*/false),
                          grads[0]);
    return {grad_x, grad_up, inner.sums, grad_down, outer.sums, {}, {}, {}, {}, {}, {}};
  }
};

std::optional<Tensor> if_defined(const Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

Tensor fp8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t index) {
  const auto& context = detail::fp8_context();
  LEVIN_CHECK(context, "[fp8_linear] there is no Fp8Scope on this thread");
  const bool grad = at::GradMode::is_enabled();
  return Fp8Linear::apply(x, weight, if_defined(bias), context, index, grad && x.requires_grad(),
                          grad && weight.requires_grad());
}

std::optional<std::pair<Fp8Factor, Fp8Factor>> fp8_pair(const Tensor& x, const Tensor& up, const Tensor& up_bias,
                                                        const Tensor& down, const Tensor& down_bias) {
  const auto& context = detail::fp8_context();
  if (!context || context->layers->casts_weights_again()) return std::nullopt;
  const auto first = fp8_layer(x, up);
  const auto second = context->layers->index_of(down);
  if (!first || !second || down.dim() != 2 || down.size(1) != up.size(0)) return std::nullopt;
  if (at::GradMode::is_enabled() && !(up.requires_grad() && down.requires_grad())) return std::nullopt;
  return std::pair(Fp8Factor{up, up_bias, *first}, Fp8Factor{down, down_bias, *second});
}

Tensor fp8_mlp(const Tensor& x, const Fp8Factor& up, Activation kind, const Fp8Factor& down) {
  const auto& context = detail::fp8_context();
  LEVIN_CHECK(context, "[fp8_mlp] there is no Fp8Scope on this thread");
  const bool grad = at::GradMode::is_enabled();
  return Fp8Mlp::apply(x, up.weight, if_defined(up.bias), down.weight, if_defined(down.bias), context, up.index,
                       down.index, static_cast<int64_t>(kind), grad && x.requires_grad(), grad);
}

}  // namespace levin::kernels
