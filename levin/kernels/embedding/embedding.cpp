#include "levin/kernels/embedding/embedding.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/kernels/embedding/embedding_detail.h"
#include "levin/kernels/embedding/embedding_launch.h"
#include "levin/kernels/embedding/waiting_gradient.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels {
namespace detail {

Tensor embedding_backward_by_aten(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding_idx) {
  return at::embedding_dense_backward(grad, ids, rows, padding_idx, /*scale_grad_by_freq=*/false);
}

void add_embedding_backward_by_aten(const Tensor& out, const Tensor& grad, const Tensor& ids, int64_t padding_idx) {
  out.add_(embedding_backward_by_aten(grad, ids, out.size(0), padding_idx));
}

Tensor embedding_with_positions_by_aten(const Tensor& weight, const Tensor& ids, const Tensor& positions) {
  return at::embedding(weight, ids) + positions;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void add_on_meta(const Tensor&, const Tensor& grad, const Tensor& ids, int64_t) {
  const auto columns = grad.size(-1), count = ids.numel();
  // Gone when the gradient is there.
  const auto keys = at::empty({6, count}, grad.options().dtype(at::kInt));  // two of them while they are sorted
  const auto sums = at::empty({2, embedding_tiles(count), columns}, grad.options().dtype(at::kFloat));
}

Tensor backward_on_meta(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding_idx) {
  auto result = at::empty({rows, grad.size(-1)}, grad.options());
  if (ids.numel() > kFewIds) add_on_meta(result, grad, ids, padding_idx);
  return result;
}

Tensor with_positions_on_meta(const Tensor& weight, const Tensor& ids, const Tensor&) {
  return at::empty({ids.size(0), ids.size(1), weight.size(1)}, weight.options());
}

struct EmbeddingOps : Operators {
  Operator<decltype(backward_on_meta)> backward =
      add("embedding_backward(Tensor grad, Tensor ids, int rows, int padding_idx) -> Tensor", backward_on_meta,
          embedding_backward_by_aten);
  Operator<decltype(add_on_meta)> add_backward =
      add("add_embedding_backward(Tensor(a!) out, Tensor grad, Tensor ids, int padding_idx) -> ()", add_on_meta,
          add_embedding_backward_by_aten);

  Operator<decltype(with_positions_on_meta)> with_positions =
      add("embedding_with_positions(Tensor weight, Tensor ids, Tensor positions) -> Tensor", with_positions_on_meta,
          embedding_with_positions_by_aten);

  EmbeddingOps() { register_embedding_cuda(cuda); }
};

bool can_add(const Tensor& to, const Tensor& grad, const Tensor& ids, int64_t rows) {
  return to.defined() && ids.numel() > kFewIds && to.scalar_type() == grad.scalar_type() && to.is_contiguous() &&
         to.sizes() == at::IntArrayRef({rows, grad.size(-1)}) && to.device() == grad.device();
}

/// The gradient of the weight; undefined where it was added to one that waits.
Tensor gradient_of_weight(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding_idx) {
  if (at::GradMode::is_enabled())  // in an operator that can be differentiated
    return embedding_backward_by_aten(grad, ids, rows, padding_idx);
  if (const auto waiting = take_gradient(0); can_add(waiting, grad, ids, rows)) {
    add_embedding_backward(waiting, grad, ids, padding_idx);
    return {};
  }
  return embedding_backward(grad, ids, rows, padding_idx);
}

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& weight, const Tensor& ids, int64_t padding_idx) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({ids});
    context->saved_data["rows"] = weight.size(0);
    context->saved_data["padding_idx"] = padding_idx;
    return at::embedding(weight, ids, padding_idx);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto ids = context->get_saved_variables()[0];
    const auto rows = context->saved_data["rows"].toInt(), padding_idx = context->saved_data["padding_idx"].toInt();
    return {gradient_of_weight(grads[0], ids, rows, padding_idx), {}, {}};
  }
};

struct EmbeddingWithPositions : torch::autograd::Function<EmbeddingWithPositions> {
  static Tensor forward(AutogradContext* context, const Tensor& weight, const Tensor& ids, const Tensor& positions) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({ids});
    context->saved_data["rows"] = weight.size(0);
    return operators<EmbeddingOps>().with_positions.call(weight, ids, positions);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto ids = context->get_saved_variables()[0];
    Tensor of_weight, of_positions;
    if (context->needs_input_grad(0))
      of_weight = gradient_of_weight(grads[0], ids, context->saved_data["rows"].toInt(), /*padding_idx=*/-1);
    if (context->needs_input_grad(2)) of_positions = grads[0].sum(0);
    return {of_weight, {}, of_positions};
  }
};

}  // namespace

Tensor fused_embedding(const Tensor& weight, const Tensor& ids, int64_t padding_idx) {
  return EmbeddingFunction::apply(weight, ids, padding_idx);
}

Tensor fused_embedding_with_positions(const Tensor& weight, const Tensor& ids, const Tensor& positions) {
  return EmbeddingWithPositions::apply(weight, ids, positions);
}

Tensor embedding_backward(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding_idx) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return operators<EmbeddingOps>().backward.call(grad, ids, rows, padding_idx);
}

void add_embedding_backward(const Tensor& out, const Tensor& grad, const Tensor& ids, int64_t padding_idx) {
  const at::AutoDispatchBelowADInplaceOrView below;
  operators<EmbeddingOps>().add_backward.call(out, grad, ids, padding_idx);
}

}  // namespace detail

Tensor embedding(const Tensor& weight, const Tensor& ids, int64_t padding_idx) {
  const bool fused = detail::runs_fused(weight) && at::GradMode::is_enabled() && weight.requires_grad();
  return fused ? detail::fused_embedding(weight, ids, padding_idx) : at::embedding(weight, ids, padding_idx);
}

Tensor embedding_with_positions(const Tensor& weight, const Tensor& ids, const Tensor& positions) {
  LEVIN_CHECK(weight.dim() == 2 && ids.dim() == 2 && positions.dim() == 2 && positions.size(0) == ids.size(1) &&
                  positions.size(1) == weight.size(1),
              "[embedding_with_positions] needs a weight [V, D], ids [B, T] and positions [T, D], got ", weight.sizes(),
              ", ", ids.sizes(), " and ", positions.sizes());
  const bool fused = detail::runs_fused(weight) && weight.scalar_type() == positions.scalar_type();
  return fused ? detail::fused_embedding_with_positions(weight, ids, positions)
               : kernels::embedding(weight, ids) + positions;
}

}  // namespace levin::kernels
