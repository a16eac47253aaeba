#include "levin/kernels/tokens/prepend_token.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/linear/known_sums.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"
#include "levin/kernels/tokens/prepend_token_detail.h"
#include "levin/kernels/tokens/prepend_token_launch.h"

namespace levin::kernels {
namespace detail {

at::ScalarType token_dtype(const Tensor& patches, const Tensor& token, const Tensor& positions) {
  return at::promote_types(at::promote_types(patches.scalar_type(), token.scalar_type()), positions.scalar_type());
}

TokenBackwardTensors allocate_token_backward(const Tensor& grad, MaybeDtype patches, MaybeDtype token,
                                             MaybeDtype positions, MaybeDtype sums, int processors) {
  const TokenSizes sizes{grad.size(0), grad.size(1), grad.size(2)};
  const auto make = [&](MaybeDtype dtype, at::IntArrayRef shape) {
    return dtype ? at::empty(shape, grad.options().dtype(*dtype)) : Tensor();
  };
  TokenBackwardTensors made{
      {make(patches, {sizes.images, sizes.tokens - 1, sizes.columns}), make(token, {1, 1, sizes.columns}),
       make(positions, {1, sizes.tokens, sizes.columns}), make(sums, {sizes.columns})},
      {}};
  if (grad.numel() == 0 || !(token || positions || sums)) return made;
  const auto parts = token_parts(sizes, number_type("prepend_token", grad.scalar_type()), processors);
  made.partials =
      make(grad.scalar_type() == at::kDouble ? at::kDouble : at::kFloat, {parts, sizes.tokens, sizes.columns});
  return made;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- in operators of torch: the kernels of the CPU, and gradients that can be differentiated again

Tensor plain_prepend_token(const Tensor& patches, const Tensor& token, const Tensor& positions) {
  // The fast kernel of cat takes tensors without gaps.
  auto tokens = at::cat({token.expand({patches.size(0), -1, -1}).contiguous(), patches}, 1);
  return positions.defined() ? tokens + positions : tokens;
}

TokenGradients plain_token_gradients(const Tensor& grad, MaybeDtype patches, MaybeDtype token, MaybeDtype positions,
                                     MaybeDtype sums) {
  const auto of_patches = grad.narrow(1, 1, grad.size(1) - 1);
  TokenGradients result;
  if (patches) std::get<0>(result) = of_patches.to(*patches).contiguous();
  if (token) std::get<1>(result) = grad.narrow(1, 0, 1).sum(0, /*keepdim=*/true).to(*token);
  if (positions) std::get<2>(result) = grad.sum(0, /*keepdim=*/true).to(*positions);
  if (sums) std::get<3>(result) = of_patches.sum(at::IntArrayRef{0, 1}).to(*sums);
  return result;
}

// ---- on meta tensors: what the kernels of CUDA allocate

Tensor tokens_on_meta(const Tensor& patches, const Tensor& token, const Tensor& positions) {
  return at::empty({patches.size(0), patches.size(1) + 1, patches.size(2)},
                   patches.options().dtype(token_dtype(patches, token, positions)));
}

TokenGradients token_gradients_on_meta(const Tensor& grad, MaybeDtype patches, MaybeDtype token, MaybeDtype positions,
                                       MaybeDtype sums) {
  return allocate_token_backward(grad, patches, token, positions, sums, kPlayedProcessors).gradients;
}

// ---- the operators

struct TokenOps : Operators {
  Operator<decltype(plain_prepend_token)> forward = add(
      "prepend_token(Tensor patches, Tensor token, Tensor positions) -> Tensor", tokens_on_meta, plain_prepend_token);
  Operator<decltype(plain_token_gradients)> backward =
      add("prepend_token_backward(Tensor grad, ScalarType? patches, ScalarType? token, ScalarType? positions, "
          "ScalarType? sums) -> (Tensor, Tensor, Tensor, Tensor)",
          token_gradients_on_meta, plain_token_gradients);

  TokenOps() { register_prepend_token_cuda(cuda); }
};

// ---- autograd

struct PrependToken : torch::autograd::Function<PrependToken> {
  static Tensor forward(AutogradContext* context, const Tensor& patches, const Tensor& token, const Tensor& positions) {
    context->saved_data["dtypes"] =
        c10::List<int64_t>({static_cast<int64_t>(patches.scalar_type()), static_cast<int64_t>(token.scalar_type()),
                            static_cast<int64_t>(positions.scalar_type())});
    const at::AutoDispatchBelowADInplaceOrView below;
    return operators<TokenOps>().forward.call(patches, token, positions);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto dtypes = context->saved_data["dtypes"].toIntVector();
    const auto wanted = [&](size_t input) {
      return context->needs_input_grad(input) ? MaybeDtype(static_cast<at::ScalarType>(dtypes[input])) : std::nullopt;
    };
    if (at::GradMode::is_enabled()) {
      const auto [patches, token, positions, none] =
          plain_token_gradients(grads[0], wanted(0), wanted(1), wanted(2), std::nullopt);
      return {patches, token, positions};
    }
    // The bias of the layer before has the dtype of the positions, as a rule.
    const auto sums_dtype =
        wanted(0) && adds_columns_up(grads[0]) ? MaybeDtype(static_cast<at::ScalarType>(dtypes[2])) : std::nullopt;
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [patches, token, positions, sums] =
        operators<TokenOps>().backward.call(grads[0], wanted(0), wanted(1), wanted(2), sums_dtype);
    if (sums.defined()) remember_column_sums(patches, sums);
    return {patches, token, positions};
  }
};

bool runs_token_kernel(const Tensor& patches, const Tensor& token, const Tensor& positions) {
  if (!positions.defined()) return false;
  for (const auto* each : {&patches, &token, &positions})
    if (!runs_fused(*each) || each->device() != patches.device()) return false;
  const auto type = [](at::ScalarType dtype) { return number_type("prepend_token", dtype); };
  return token_kernel_knows(type(patches.scalar_type()), type(token_dtype(patches, token, positions)));
}

}  // namespace

Tensor fused_prepend_token(const Tensor& patches, const Tensor& token, const Tensor& positions) {
  return PrependToken::apply(patches, token, positions);
}

}  // namespace detail

Tensor prepend_token(const Tensor& patches, const Tensor& token, const Tensor& positions) {
  LEVIN_CHECK(patches.dim() == 3 && token.sizes() == at::IntArrayRef({1, 1, patches.size(2)}),
              "[prepend_token] patches must be [B, N, D] and the token [1, 1, D], got ", patches.sizes(), " and ",
              token.sizes());
  LEVIN_CHECK(!positions.defined() || positions.sizes() == at::IntArrayRef({1, patches.size(1) + 1, patches.size(2)}),
              "[prepend_token] positions must be [1, ", patches.size(1) + 1, ", ", patches.size(2), "], got ",
              positions.sizes());
  return detail::runs_token_kernel(patches, token, positions) ? detail::fused_prepend_token(patches, token, positions)
                                                              : detail::plain_prepend_token(patches, token, positions);
}

}  // namespace levin::kernels
