#include <algorithm>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/kernels/linear/product_dtype.h"
#include "levin/nn/tensor/functions.h"

namespace levin::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct VocabLossParts {
  Tensor sum, grad_x, grad_weight;
};

/// Losses of some rows of logits, [rows, own V], which become their gradients.
Tensor loss_of_rows(Tensor& logits, const Tensor& targets, const VocabShare& share, const VocabLossOptions& options) {
  auto& ranks = *share.ranks;
  Tensor turned;
  if (options.softcap > 0) {
    turned = at::tanh(logits / options.softcap);
    logits = turned * options.softcap;
  }
  auto highest = logits.amax(1);
  ranks.all_reduce(highest, ReduceOp::kMax);
  logits.sub_(highest.unsqueeze(1));
  const auto ignored = targets.eq(options.ignored);
  const auto place = targets - share.rows.first;
  const auto elsewhere = ignored | (place < 0) | (place >= share.rows.count);
  const auto index = place.masked_fill(elsewhere, 0).unsqueeze(1);
  const auto wanted = logits.gather(1, index).squeeze(1).masked_fill(elsewhere, 0);
  logits.exp_();
  auto both = at::stack({logits.sum(1), wanted});  // one message for two numbers of each row
  ranks.all_reduce(both);
  const auto losses = (both[0].log() - both[1]).masked_fill(ignored, 0);
  logits.div_(both[0].unsqueeze(1));
  const auto ones = elsewhere.logical_not().to(logits.scalar_type()).neg_();
  logits.scatter_add_(1, index, ones.unsqueeze(1));
  logits.masked_fill_(ignored.unsqueeze(1), 0);
  if (turned.defined()) logits.mul_(1 - turned * turned);
  return losses.sum();
}

VocabLossParts loss_of_chunks(const Tensor& x, const Tensor& weight, const Tensor& targets, const VocabShare& share,
                              const VocabLossOptions& options, bool for_x, bool for_weight) {
  const auto dtype = kernels::product_dtype(weight);
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto w = weight.to(dtype);
  const auto all = x.size(0), rows = options.rows > 0 ? options.rows : std::max<int64_t>(all, 1);
  VocabLossParts parts{.sum = at::zeros({}, x.options().dtype(wide))};
  if (for_x) parts.grad_x = at::empty_like(x);
  if (for_weight) parts.grad_weight = at::zeros_like(weight);
  for (int64_t begin = 0; begin < all; begin += rows) {
    const auto count = std::min(rows, all - begin);
    const auto part = x.narrow(0, begin, count).to(dtype);
    auto logits = at::mm(part, w.t()).to(wide);
    parts.sum += loss_of_rows(logits, targets.narrow(0, begin, count), share, options);
    const auto grad = logits.to(dtype);
    if (for_x) parts.grad_x.narrow(0, begin, count).copy_(at::mm(grad, w));
    if (for_weight) parts.grad_weight.add_(at::mm(grad.t(), part));
  }
  return parts;
}

struct VocabLoss : torch::autograd::Function<VocabLoss> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Tensor& targets,
                        const VocabShare& share, const VocabLossOptions& options, bool for_x, bool for_weight) {
    const auto count = targets.ne(options.ignored).sum();
    auto parts = loss_of_chunks(x, weight, targets, share, options, for_x, for_weight);
    context->save_for_backward({parts.grad_x, parts.grad_weight, count.clamp_min(1)});
    return parts.sum / count;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    LEVIN_CHECK(!at::GradMode::is_enabled(), "[tensor_parallel] the gradient of the loss cannot be differentiated");
    const auto saved = context->get_saved_variables();
    const auto scale = grads[0] / saved[2];
    variable_list result(7);
    for (size_t i = 0; i < 2; ++i)
      if (saved[i].defined()) result[i] = saved[i] * scale.to(saved[i].scalar_type());
    return result;
  }
};

}  // namespace

Tensor vocab_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, const VocabShare& share,
                           const VocabLossOptions& options) {
  LEVIN_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) && weight.size(0) == share.rows.count &&
                  targets.sizes() == x.sizes().slice(0, static_cast<size_t>(x.dim() - 1)),
              "[tensor_parallel] the loss needs x [..., D], ", share.rows.count,
              " rows of a weight and targets [...], ", "got ", x.sizes(), ", ", weight.sizes(), " and ",
              targets.sizes());
  const bool grad = at::GradMode::is_enabled();
  return VocabLoss::apply(x.reshape({-1, x.size(-1)}), weight, targets.reshape({-1}).to(at::kLong), share, options,
                          grad && x.requires_grad(), grad && weight.requires_grad());
}

}  // namespace levin::nn
