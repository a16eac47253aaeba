#include "levin/models/decoder_loss.h"

#include <algorithm>

#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "levin/core/error.h"

namespace levin::models {
namespace {

using torch::autograd::AutogradContext;

at::ScalarType wide_dtype(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// In what dtype a product with the weight is computed here.
at::ScalarType product_dtype(const Tensor& weight) {
  const auto device = weight.device().type();
  if (at::autocast::is_autocast_available(device))
    return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device) : weight.scalar_type();
  // torch has no autocast of meta tensors, but estimates of memory have: a product of nothing tells.
  const auto nothing = at::empty({0, 0}, weight.options());
  return at::mm(nothing, nothing).scalar_type();
}

struct LossParts {
  Tensor sum, grad_x, grad_weight;
};

/// Sum of the losses of rows x [N, D], and its gradients where they are asked for.
LossParts loss_in_chunks(const Tensor& x, const Tensor& weight, const Tensor& targets, int64_t rows, bool for_x,
                         bool for_weight) {
  const auto dtype = product_dtype(weight);
  const auto w = weight.to(dtype);
  LossParts parts{.sum = at::zeros({}, x.options().dtype(wide_dtype(x)))};
  if (for_x) parts.grad_x = at::empty_like(x);
  if (for_weight) parts.grad_weight = at::zeros_like(weight);
  for (int64_t begin = 0; begin < x.size(0); begin += rows) {
    const auto count = std::min(rows, x.size(0) - begin);
    const auto part = x.narrow(0, begin, count).to(dtype);
    const auto target = targets.narrow(0, begin, count).unsqueeze(1);
    const auto ignored = target.eq(kIgnoredToken);
    const auto index = target.masked_fill(ignored, 0);
    auto scores = at::log_softmax(at::mm(part, w.t()), 1, wide_dtype(x));
    parts.sum -= scores.gather(1, index).masked_fill_(ignored, 0).sum();
    if (!for_x && !for_weight) continue;
    // The gradient of the logits is softmax minus one at the target.
    scores.exp_().scatter_add_(1, index, at::full({1, 1}, -1, scores.options()).expand({count, 1}));
    const auto grad = scores.masked_fill_(ignored, 0).to(dtype);
    scores.reset();
    if (for_x) parts.grad_x.narrow(0, begin, count).copy_(at::mm(grad, w));
    if (!for_weight) continue;
    if (dtype == weight.scalar_type())
      parts.grad_weight.addmm_(grad.t(), part);
    else
      parts.grad_weight.add_(at::mm(grad.t(), part));
  }
  return parts;
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Tensor& targets,
                        int64_t rows, bool for_x, bool for_weight) {
    const auto parts = loss_in_chunks(x, weight, targets, rows, for_x, for_weight);
    const auto count = targets.ne(kIgnoredToken).sum();
    context->save_for_backward({parts.grad_x, parts.grad_weight, count});
    return parts.sum / count;
  }

  static torch::autograd::variable_list backward(AutogradContext* context, torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto scale = grads[0] / saved[2];
    // The gradients are as large as what they belong to; nobody reads the saved ones again unless the graph is kept.
    const bool kept = torch::autograd::get_current_graph_task_keep_graph();
    const auto scaled = [&](Tensor grad) {
      if (!grad.defined()) return grad;
      const auto factor = scale.to(grad.scalar_type());
      return kept ? grad * factor : grad.mul_(factor);
    };
    return {scaled(saved[0]), scaled(saved[1]), {}, {}, {}, {}};
  }
};

}  // namespace

Tensor next_tokens(const Tensor& tokens) {
  LEVIN_CHECK(tokens.dim() == 2 && tokens.size(1) > 0, "[next_tokens] tokens must be [B, T], got ", tokens.sizes());
  const auto last = at::full({tokens.size(0), 1}, kIgnoredToken, tokens.options());
  return at::cat({tokens.slice(1, 1), last}, 1);
}

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, int64_t rows) {
  LEVIN_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) &&
                  targets.sizes() == x.sizes().slice(0, static_cast<size_t>(x.dim() - 1)),
              "[linear_cross_entropy] needs x [..., D], weight [V, D] and targets [...], got ", x.sizes(), ", ",
              weight.sizes(), " and ", targets.sizes());
  LEVIN_CHECK(rows >= 0, "[linear_cross_entropy] rows ", rows, " must be 0 (all) or more");
  const auto flat = x.reshape({-1, x.size(-1)});
  const auto flat_targets = targets.reshape({-1}).to(at::kLong);
  if (rows == 0) {
    const auto logits = at::linear(flat, weight);
    return at::cross_entropy_loss(logits.to(wide_dtype(logits)), flat_targets, {}, at::Reduction::Mean, kIgnoredToken);
  }
  const bool grad = at::GradMode::is_enabled();
  return LinearCrossEntropy::apply(flat, weight, flat_targets, rows, grad && flat.requires_grad(),
                                   grad && weight.requires_grad());
}

}  // namespace levin::models
