#include "levin/kernels/activation.h"

#include <optional>
#include <tuple>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/kernels/activation_detail.h"
#include "levin/kernels/activation_launch.h"
#include "levin/kernels/linear/known_sums.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels {
namespace detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Two = std::tuple<Tensor, Tensor>;

// ---- in operators of torch: the kernels of the CPU, and gradients that can be differentiated again

Tensor plain(const Tensor& x, int64_t kind) {
  switch (static_cast<Activation>(kind)) {
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSilu:
      return at::silu(x);
  }
  levin::detail::fail("[activation] unknown kind");
}

Tensor plain_backward(const Tensor& grad, const Tensor& x, int64_t kind) {
  switch (static_cast<Activation>(kind)) {
    case Activation::kGelu:
      return at::gelu_backward(grad, x);
    case Activation::kGeluTanh:
      return at::gelu_backward(grad, x, "tanh");
    case Activation::kRelu:
      return at::threshold_backward(grad, x, 0);
    case Activation::kSilu:
      return at::silu_backward(grad, x);
  }
  levin::detail::fail("[activation] unknown kind");
}

Two plain_backward_and_sums(const Tensor& grad, const Tensor& x, int64_t kind, at::ScalarType dtype) {
  auto result = plain_backward(grad, x, kind);
  auto sums = result.reshape({-1, x.size(-1)}).sum(0).to(dtype);
  return {std::move(result), std::move(sums)};
}

/// torch's own has no derivative.
Tensor smooth_silu_backward(const Tensor& grad, const Tensor& x) {
  const auto s = at::sigmoid(x);
  return grad * s * (1 + x * (1 - s));
}

Tensor plain_gated(const Tensor& gate, const Tensor& up) {
  return at::silu(gate) * up;
}
Two plain_gated_backward(const Tensor& grad, const Tensor& gate, const Tensor& up) {
  return {at::silu_backward(grad * up, gate), grad * at::silu(gate)};
}

// ---- on meta tensors: what the kernels of CUDA allocate

Tensor like(const Tensor& x) {
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}
Tensor on_meta(const Tensor& x, int64_t) {
  return like(x);
}
Tensor backward_on_meta(const Tensor&, const Tensor& x, int64_t) {
  return like(x);
}
Two backward_and_sums_on_meta(const Tensor&, const Tensor& x, int64_t, at::ScalarType dtype) {
  const auto columns = x.size(-1), rows = columns > 0 ? x.numel() / columns : 0;
  auto result = like(x), sums = at::empty({columns}, x.options().dtype(dtype));
  if (x.numel() > 0)  // gone when the sums are there
    (void)at::empty({activation_sums_parts(rows, columns, kPlayedProcessors), columns}, x.options().dtype(at::kFloat));
  return {std::move(result), std::move(sums)};
}
Tensor gated_on_meta(const Tensor& gate, const Tensor&) {
  return like(gate);
}
Two gated_backward_on_meta(const Tensor&, const Tensor& gate, const Tensor& up) {
  return {like(gate), like(up)};
}

// ---- the operators

struct ActivationOps : Operators {
  Operator<decltype(plain)> forward = add("activation(Tensor x, int kind) -> Tensor", on_meta, plain);
  Operator<decltype(plain_backward)> backward =
      add("activation_backward(Tensor grad, Tensor x, int kind) -> Tensor", backward_on_meta, plain_backward);
  Operator<decltype(plain_backward_and_sums)> backward_and_sums =
      add("activation_backward_and_sums(Tensor grad, Tensor x, int kind, ScalarType dtype) -> (Tensor, Tensor)",
          backward_and_sums_on_meta, plain_backward_and_sums);
  Operator<decltype(plain_gated)> gated =
      add("gated_silu(Tensor gate, Tensor up) -> Tensor", gated_on_meta, plain_gated);
  Operator<decltype(plain_gated_backward)> gated_backward =
      add("gated_silu_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)", gated_backward_on_meta,
          plain_gated_backward);

  ActivationOps() { register_activation_cuda(cuda); }
};

// ---- autograd

struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  /// `bias`: the dtype of the bias of the layer whose result x is, where it is one.
  static Tensor forward(AutogradContext* context, const Tensor& x, int64_t kind, std::optional<at::ScalarType> bias) {
    context->save_for_backward({x});
    context->saved_data["kind"] = kind;
    context->saved_data["bias"] = static_cast<int64_t>(bias.value_or(at::ScalarType::Undefined));
    const at::AutoDispatchBelowADInplaceOrView below;
    return operators<ActivationOps>().forward.call(x, kind);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto x = context->get_saved_variables()[0];
    const auto kind = context->saved_data["kind"].toInt();
    if (at::GradMode::is_enabled()) {
      const bool silu = static_cast<Activation>(kind) == Activation::kSilu;
      return {silu ? smooth_silu_backward(grads[0], x) : plain_backward(grads[0], x, kind), Tensor(), Tensor()};
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto bias = static_cast<at::ScalarType>(context->saved_data["bias"].toInt());
    if (bias == at::ScalarType::Undefined)
      return {operators<ActivationOps>().backward.call(grads[0], x, kind), Tensor(), Tensor()};
    auto [grad, sums] = activation_backward_and_sums(grads[0], x, static_cast<Activation>(kind), bias);
    remember_column_sums(grad, sums);
    return {std::move(grad), Tensor(), Tensor()};
  }
};

struct GatedSilu : torch::autograd::Function<GatedSilu> {
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    context->save_for_backward({gate, up});
    const at::AutoDispatchBelowADInplaceOrView below;
    return operators<ActivationOps>().gated.call(gate, up);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto gradients = [&]() -> Two {
      if (at::GradMode::is_enabled())
        return {smooth_silu_backward(grads[0] * saved[1], saved[0]), grads[0] * at::silu(saved[0])};
      const at::AutoDispatchBelowADInplaceOrView below;
      return operators<ActivationOps>().gated_backward.call(grads[0], saved[0], saved[1]);
    }();
    return {std::get<0>(gradients), std::get<1>(gradients)};
  }
};

}  // namespace

Tensor run_activation(const Tensor& x, Activation kind) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return operators<ActivationOps>().forward.call(x, static_cast<int64_t>(kind));
}
Tensor run_activation_backward(const Tensor& grad, const Tensor& x, Activation kind) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return operators<ActivationOps>().backward.call(grad, x, static_cast<int64_t>(kind));
}
Two activation_backward_and_sums(const Tensor& grad, const Tensor& x, Activation kind, at::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return operators<ActivationOps>().backward_and_sums.call(grad, x, static_cast<int64_t>(kind), dtype);
}
Tensor fused_activation(const Tensor& x, Activation kind, std::optional<at::ScalarType> bias) {
  return ActivationFunction::apply(x, static_cast<int64_t>(kind), bias);
}
Tensor fused_gated_silu(const Tensor& gate, const Tensor& up) {
  return GatedSilu::apply(gate, up);
}

}  // namespace detail

Tensor activation(const Tensor& x, Activation kind) {
  return detail::runs_fused(x) ? detail::fused_activation(x, kind) : detail::plain(x, static_cast<int64_t>(kind));
}

Tensor gated_silu(const Tensor& gate, const Tensor& up) {
  LEVIN_CHECK(gate.sizes() == up.sizes(), "[gated_silu] gate is ", gate.sizes(), ", up ", up.sizes(),
              "; they must be equal");
  const bool fused = detail::runs_fused(gate) && gate.scalar_type() == up.scalar_type();
  return fused ? detail::fused_gated_silu(gate, up) : detail::plain_gated(gate, up);
}

}  // namespace levin::kernels
