#include <ATen/Functions.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/kernels/fp8_layers.h"

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
  if (layers.casts_weights_again())
    return layers.cast(context, index, Fp8Operand::kWeight, weight, /*rows=*/true, /*columns=*/false);
  auto& kept = context.weights[weight.unsafeGetTensorImpl()];
  if (!kept.rows.defined() || (columns && !kept.columns.defined()))
    kept = layers.cast(context, index, Fp8Operand::kWeight, weight, /*rows=*/true, columns);
  return kept;
}

Tensor cast_bias(Fp8Context& context, const std::optional<Tensor>& bias) {
  if (!bias || !bias->defined()) return {};
  if (bias->scalar_type() == kResult) return *bias;
  auto& kept = context.biases[bias->unsafeGetTensorImpl()];
  if (!kept.defined()) kept = bias->to(kResult);
  return kept;
}

struct Fp8Linear : torch::autograd::Function<Fp8Linear> {
  // What a graph needs is the input and the weight in the layouts of the backward products.
  static Tensor forward(AutogradContext* node, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        const Fp8ContextPtr& context, int64_t index, bool for_x, bool for_weight) {
    auto& layers = *context->layers;
    const auto matrix = x.reshape({-1, x.size(-1)});
    const auto input = layers.cast(*context, index, Fp8Operand::kInput, matrix, /*rows=*/true, for_weight);
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
    data["bias"] = static_cast<int64_t>(bias && bias->defined() && bias->requires_grad() ? bias->scalar_type()
                                                                                         : at::ScalarType::Undefined);
    auto sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return at::_unsafe_view(result, sizes);  // no view that autograd would know
  }

  static variable_list backward(AutogradContext* node, variable_list grads) {
    LEVIN_CHECK(!at::GradMode::is_enabled(),
                "[fp8_linear] precision \"fp8-mixed\" has no second derivatives (create_graph); use \"bf16-mixed\"");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    auto& data = node->saved_data;
    const auto dtype_of = [&](const char* name) { return static_cast<at::ScalarType>(data[name].toInt()); };
    const auto context = c10::static_intrusive_pointer_cast<HeldContext>(data["context"].toCapsule())->context;
    auto& layers = *context->layers;
    const auto index = data["index"].toInt();
    const auto saved = node->get_saved_variables();
    const bool for_weight = saved[0].defined(), for_x = saved[2].defined();

    const auto& given = grads[0];
    const auto matrix = given.reshape({-1, given.size(-1)}).contiguous();
    Tensor grad_x, grad_weight, grad_bias;
    if (const auto dtype = dtype_of("bias"); dtype != at::ScalarType::Undefined)
      grad_bias = at::sum(matrix, {0}, /*keepdim=*/false, dtype);
    if (for_x || for_weight) {
      auto gradient = layers.cast(*context, index, Fp8Operand::kGradient, matrix, for_x, for_weight);
      if (for_x) {
        Fp8Cast factor{.columns = saved[2], .column_inverse = saved[3]};
        if (layers.casts_weights_again())
          factor = layers.cast(*context, index, Fp8Operand::kWeight, saved[2], /*rows=*/false, /*columns=*/true);
        grad_x = fp8_mm(gradient.rows, factor.columns, gradient.inverse, factor.column_inverse, {}, dtype_of("x"),
                        /*fast_accumulation=*/false);
        auto sizes = given.sizes().vec();
        sizes.back() = grad_x.size(1);
        grad_x = grad_x.view(sizes);
        gradient.rows.reset();
      }
      if (for_weight)
        grad_weight = fp8_mm(gradient.columns, saved[0], gradient.column_inverse, saved[1], {}, dtype_of("weight"),
                             /*fast_accumulation=*/false);
    }
    return {grad_x, grad_weight, grad_bias, {}, {}, {}, {}};
  }
};

}  // namespace

Tensor fp8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t index) {
  const auto& context = detail::fp8_context();
  LEVIN_CHECK(context, "[fp8_linear] there is no Fp8Scope on this thread");
  const bool grad = at::GradMode::is_enabled();
  return Fp8Linear::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, context, index,
                          grad && x.requires_grad(), grad && weight.requires_grad());
}

}  // namespace levin::kernels
