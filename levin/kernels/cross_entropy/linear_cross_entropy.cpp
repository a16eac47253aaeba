#include "levin/kernels/cross_entropy/linear_cross_entropy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include "levin/core/error.h"
#include "levin/kernels/cross_entropy/cross_entropy_detail.h"
#include "levin/kernels/cross_entropy/linear_cross_entropy_detail.h"
#include "levin/kernels/cross_entropy/linear_cross_entropy_launch.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels {
namespace {

std::tuple<Tensor, Tensor> step_on_meta(const Tensor& x, const Tensor& weight, const Tensor&, const Tensor& losses,
                                        const std::optional<Tensor>& grads, int64_t, int64_t,
                                        const std::optional<Tensor>&) {
  auto factors = at::empty(losses.sizes(), losses.options());
  auto scaled = grads ? at::empty(x.sizes(), x.options()) : Tensor();
  // Gone when the step is done.
  (void)at::empty({detail::linear_cross_entropy_scratch(x.size(0), weight.size(0))}, losses.options());
  return {factors, scaled};
}

/// Factors of one: the gradients are whole.
std::tuple<Tensor, Tensor> step_by_aten(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                        const Tensor& losses, const std::optional<Tensor>& grads, int64_t classes,
                                        int64_t ignore_index, const std::optional<Tensor>& scale) {
  const auto logits = at::mm(x.to(losses.scalar_type()), weight.to(losses.scalar_type()).t());
  detail::cross_entropy_by_aten(logits, targets, losses, classes, ignore_index, grads.has_value(), scale);
  if (grads) grads->copy_(logits);
  return {at::full(losses.sizes(), 1, losses.options()), grads ? x.clone() : Tensor()};
}

struct LinearCrossEntropyOps : detail::Operators {
  detail::Operator<decltype(step_on_meta)> step = add(
      "linear_cross_entropy_step(Tensor x, Tensor weight, Tensor targets, Tensor(a!) losses, Tensor(b!)? grads, int "
      "classes, int ignore_index, Tensor? scale) -> (Tensor, Tensor)",
      step_on_meta, step_by_aten);

  LinearCrossEntropyOps() { detail::register_linear_cross_entropy_cuda(cuda); }
};

}  // namespace

bool has_linear_cross_entropy_step(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && x.size(1) > 0 && x.size(1) % 8 == 0 && detail::runs_fused(x) &&
         detail::runs_hopper_kernels(x);
}

std::tuple<Tensor, Tensor> linear_cross_entropy_step(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                                     const Tensor& losses, const Tensor& grads,
                                                     const CrossEntropyStep& options) {
  LEVIN_CHECK(
      x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1) && targets.dim() == 1 &&
          targets.scalar_type() == at::kLong && targets.size(0) == x.size(0) && losses.sizes() == targets.sizes(),
      "[linear_cross_entropy_step] needs x [N, D], weight [C, D], targets int64 [N] and losses [N], got ", x.sizes(),
      ", ", weight.sizes(), ", ", targets.scalar_type(), " ", targets.sizes(), " and ", losses.sizes());
  LEVIN_CHECK(!grads.defined() || (grads.dim() == 2 && grads.size(0) == x.size(0) && grads.size(1) == weight.size(0) &&
                                   grads.scalar_type() == x.scalar_type()),
              "[linear_cross_entropy_step] grads must be ", x.scalar_type(), " [", x.size(0), ", ", weight.size(0),
              "]");
  LEVIN_CHECK(options.classes > 0 && options.classes <= weight.size(0), "[linear_cross_entropy_step] classes ",
              options.classes, " are not in 1 to ", weight.size(0));
  return detail::operators<LinearCrossEntropyOps>().step.call(
      x, weight, targets, losses, grads.defined() ? std::optional<Tensor>(grads) : std::nullopt, options.classes,
      options.ignore_index, options.scale);
}

}  // namespace levin::kernels
