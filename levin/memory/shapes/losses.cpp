#include <utility>

#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>

#include "levin/memory/shapes/shape_call.h"

namespace levin::detail {
namespace {

bool is_reduced(const ShapeCall& call) {
  return call.integer("reduction") != at::Reduction::None;
}

/// A number for each element, which lives while it is reduced.
void pointwise_loss(ShapeCall& call) {
  const auto &x = call.tensor("self"), &y = call.tensor("target");
  if (!is_reduced(call)) return broadcasts("self", "target")(call);
  call.scratch(at::infer_size(x.sizes(), y.sizes()), x.scalar_type());
  call.result({}, x);
}

/// The loss is reduced into the memory of what it was reduced from.
void binary_cross_entropy(ShapeCall& call) {
  const auto& x = call.tensor();
  if (!is_reduced(call)) return call.like(x);
  call.result_in(x.numel(), {}, x.scalar_type());
}

/// A loss of each row of [N, C] or [C].
Sizes rows_of(const ShapeCall& call) {
  const auto& x = call.tensor();
  return is_reduced(call) || x.dim() < 2 ? Sizes{} : Sizes{x.size(0)};
}

void multilabel_margin(ShapeCall& call) {
  call.result(rows_of(call), call.tensor());
  call.result(call.tensor("target").sizes().vec(), call.tensor());
}

/// Of mean and sum of squares too.
void reduced_in_place(ShapeCall& call) {
  const auto &x = call.tensor("self"), &y = call.tensor("target");
  if (!is_reduced(call)) return broadcasts("self", "target")(call);
  auto sizes = at::infer_size(x.sizes(), y.sizes());
  call.scratch(sizes, x.scalar_type());
  call.result_in(c10::multiply_integers(sizes), {}, x.scalar_type());
}

void nll_loss2d(ShapeCall& call) {
  const auto& x = call.tensor();
  call.result(is_reduced(call) ? Sizes{} : Sizes{x.size(0), x.size(2), x.size(3)}, x);
  call.result({}, x);
}

/// Of log-probabilities [T, N, C] or [T, C].
void ctc_loss_backward(ShapeCall& call) {
  call.scratch_like(call.tensor("log_alpha"));
  call.like(call.tensor("log_probs"));
}

}  // namespace

std::span<const ShapeRule> loss_shapes() {
  static const std::vector<ShapeRule> rules{
      {"binary_cross_entropy", binary_cross_entropy},
      {"binary_cross_entropy_backward", likes({"self"})},
      {"huber_loss", pointwise_loss},
      {"huber_loss_backward", writes_arguments},
      {"smooth_l1_loss", reduced_in_place, /*replaces=*/true},
      {"smooth_l1_loss_backward", writes_arguments},
      {"mse_loss_backward", contiguous_likes({"self"})},
      {"mse_loss", reduced_in_place, /*replaces=*/true},
      {"multi_margin_loss", [](ShapeCall& call) { call.result(rows_of(call), call.tensor()); }},
      {"multi_margin_loss_backward", contiguous_likes({"self"})},
      {"multilabel_margin_loss_forward", multilabel_margin},
      {"multilabel_margin_loss_backward", contiguous_likes({"self"})},
      {"nll_loss2d_forward", nll_loss2d},
      {"nll_loss2d_backward", contiguous_likes({"self"})},
      {"_ctc_loss_backward", ctc_loss_backward},
  };
  return rules;
}

}  // namespace levin::detail
