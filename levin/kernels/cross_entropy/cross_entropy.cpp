#include "levin/kernels/cross_entropy/cross_entropy.h"

#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mul.h>

#include "levin/core/error.h"
#include "levin/kernels/cross_entropy/cross_entropy_detail.h"
#include "levin/kernels/operators.h"

namespace levin::kernels {
namespace {

/// The kernel of CUDA takes no memory.
void cross_entropy_of_nothing(const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, bool,
                              const std::optional<Tensor>&) {}

void scale_of_nothing(const Tensor&, const Tensor&) {}

void scale_rows_of_nothing(const Tensor&, const Tensor&, const Tensor&) {}

struct CrossEntropyOps : detail::Operators {
  detail::Operator<decltype(cross_entropy_of_nothing)> step = add(
      "cross_entropy_step(Tensor(a!) logits, Tensor targets, Tensor(b!) losses, int classes, int ignore_index, bool "
      "gradient, Tensor? scale) -> ()",
      cross_entropy_of_nothing, detail::cross_entropy_by_aten);
  detail::Operator<decltype(scale_of_nothing)> scale =
      add("scale_(Tensor(a!) x, Tensor factor) -> ()", scale_of_nothing, detail::scale_by_aten);
  detail::Operator<decltype(scale_rows_of_nothing)> scale_rows = add(
      "scale_rows(Tensor(a!) out, Tensor x, Tensor factors) -> ()", scale_rows_of_nothing, detail::scale_rows_by_aten);

  CrossEntropyOps() { detail::register_cross_entropy_cuda(cuda); }
};

}  // namespace

namespace detail {

void cross_entropy_by_aten(const Tensor& logits, const Tensor& targets, const Tensor& losses, int64_t classes,
                           int64_t ignore_index, bool gradient, const std::optional<Tensor>& scale) {
  const auto counted = logits.narrow(1, 0, classes);
  const auto target = targets.unsqueeze(1), ignored = target.eq(ignore_index);
  const auto index = target.masked_fill(ignored, 0);
  auto scores = at::log_softmax(counted, 1, logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  losses.copy_(scores.gather(1, index).neg_().masked_fill_(ignored, 0).squeeze(1));
  if (!gradient) return;
  scores.exp_().scatter_add_(1, index, at::full({1, 1}, -1, scores.options()).expand({index.size(0), 1}));
  if (scale) scores.mul_(*scale);
  counted.copy_(scores.masked_fill_(ignored, 0));
  if (classes < logits.size(1)) logits.narrow(1, classes, logits.size(1) - classes).zero_();
}

void scale_by_aten(const Tensor& x, const Tensor& factor) {
  x.mul_(factor);
}

void scale_rows_by_aten(const Tensor& out, const Tensor& x, const Tensor& factors) {
  auto to = out;
  at::mul_out(to, x, factors.unsqueeze(1));
}

}  // namespace detail

namespace {

void run_step(const Tensor& logits, const Tensor& targets, const Tensor& losses, const CrossEntropyStep& options,
              bool gradient) {
  LEVIN_CHECK(logits.dim() == 2 && logits.is_floating_point() && targets.dim() == 1 &&
                  targets.scalar_type() == at::kLong && targets.size(0) == logits.size(0) &&
                  losses.sizes() == targets.sizes(),
              "[cross_entropy_step] needs logits [N, C], targets int64 [N] and losses [N], got ", logits.sizes(), ", ",
              targets.scalar_type(), " ", targets.sizes(), " and ", losses.sizes());
  LEVIN_CHECK(losses.scalar_type() == (logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat),
              "[cross_entropy_step] losses of ", logits.scalar_type(), " logits cannot be ", losses.scalar_type());
  LEVIN_CHECK(options.classes > 0 && options.classes <= logits.size(1), "[cross_entropy_step] classes ",
              options.classes, " are not in 1 to ", logits.size(1));
  if (logits.size(0) == 0) return;
  detail::operators<CrossEntropyOps>().step.call(logits, targets, losses, options.classes, options.ignore_index,
                                                 gradient, options.scale);
}

}  // namespace

void cross_entropy_step(const Tensor& logits, const Tensor& targets, const Tensor& losses,
                        const CrossEntropyStep& options) {
  run_step(logits, targets, losses, options, /*gradient=*/true);
}

void cross_entropy_losses(const Tensor& logits, const Tensor& targets, const Tensor& losses,
                          const CrossEntropyStep& options) {
  run_step(logits, targets, losses, options, /*gradient=*/false);
}

void scale_in_place(const Tensor& x, const Tensor& factor) {
  LEVIN_CHECK(factor.numel() == 1 && factor.scalar_type() == x.scalar_type(), "[scale_in_place] needs one factor of ",
              x.scalar_type(), ", got ", factor.scalar_type(), " ", factor.sizes());
  if (x.numel() > 0) detail::operators<CrossEntropyOps>().scale.call(x, factor);
}

void scale_rows(const Tensor& out, const Tensor& x, const Tensor& factors) {
  LEVIN_CHECK(x.dim() == 2 && factors.dim() == 1 && factors.size(0) == x.size(0) && out.sizes() == x.sizes() &&
                  out.is_floating_point() && x.scalar_type() == at::kFloat && factors.scalar_type() == at::kFloat,
              "[scale_rows] needs float32 x [N, D], factors [N] and a result [N, D], got ", x.scalar_type(), " ",
              x.sizes(), ", ", factors.scalar_type(), " ", factors.sizes(), " and ", out.sizes());
  if (x.numel() > 0) detail::operators<CrossEntropyOps>().scale_rows.call(out, x, factors);
}

}  // namespace levin::kernels
