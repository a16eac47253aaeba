// Layer, RMS and group norm, and what of their backward are rows.
#include "levin/compile/lower.h"

namespace levin::compile {
namespace {

using Op = ScalarOp;

/// Rows of the last dimensions, as many as "normalized_shape" has.
std::optional<LowerSpace> normalized_space(const Node& node) {
  const auto* input = node.tensor("input");
  const auto* shape = node.number("normalized_shape");
  if (!input || !shape || !shape->isIntList()) return {};
  const auto n = shape->toIntVector().size();
  LowerSpace space{input->sizes, std::vector<bool>(input->sizes.size(), false), input->strides};
  for (size_t d = space.sizes.size() - n; d < space.sizes.size(); ++d) space.reduced[d] = true;
  return space;
}

int mean_of(Lower& l, int x) {
  return l.div(l.reduce(Op::kRowSum, x), l.constant(static_cast<double>(l.reduced_count())));
}

int affine(Lower& l, int x) {
  if (l.has("weight")) x = l.mul(x, l.operand("weight"));
  if (l.has("bias")) x = l.add(x, l.operand("bias"));
  return x;
}

void layer_norm(Lower& l) {
  const int x = l.operand("input"), mean = mean_of(l, x), centered = l.sub(x, mean);
  const int variance = mean_of(l, l.mul(centered, centered));
  const int rstd = l.op(Op::kRsqrt, l.add(variance, l.constant(l.real("eps", 1e-5))));
  l.result(affine(l, l.mul(centered, rstd)));
  l.result(mean, 1);
  l.result(rstd, 2);
}

bool wants(const Lower& l, size_t k) {
  const auto* mask = l.node.number("output_mask");
  return mask && mask->isBoolList() ? mask->toBoolList().get(k) : true;
}

void layer_norm_backward(Lower& l) {
  const int grad = l.operand("grad_out"), x = l.operand("input"), rstd = l.operand("rstd");
  const int normal = l.mul(l.sub(x, l.operand("mean")), rstd);
  size_t k = 0;
  if (wants(l, 0)) {
    const int scaled = l.has("weight") ? l.mul(grad, l.operand("weight")) : grad;
    const int along = mean_of(l, l.mul(scaled, normal)), level = mean_of(l, scaled);
    l.result(l.mul(rstd, l.sub(l.sub(scaled, level), l.mul(normal, along))), k++);
  }
  if (wants(l, 1)) l.result_at(l.aligned(l.node.writes[k++]), l.reduce_kept(l.mul(grad, normal)));
  if (wants(l, 2)) l.result_at(l.aligned(l.node.writes[k++]), l.reduce_kept(grad));
}

void rms_norm(Lower& l) {
  const int x = l.operand("input");
  const double eps =
      l.real("eps", l.node.tensor("input")->dtype == at::kDouble ? 2.220446049250313e-16 : 1.1920929e-07);
  const int rstd = l.op(Op::kRsqrt, l.add(mean_of(l, l.mul(x, x)), l.constant(eps)));
  l.result(affine(l, l.mul(x, rstd)));
  l.result(rstd, 1);
}

void rms_norm_backward(Lower& l) {
  const int grad = l.operand("grad_out"), x = l.operand("input"), rstd = l.operand("rstd"), normal = l.mul(x, rstd);
  size_t k = 0;
  if (wants(l, 0)) {
    const int scaled = l.has("weight") ? l.mul(grad, l.operand("weight")) : grad;
    l.result(l.mul(rstd, l.sub(scaled, l.mul(normal, mean_of(l, l.mul(scaled, normal))))), k++);
  }
  if (wants(l, 1)) l.result_at(l.aligned(l.node.writes[k++]), l.reduce_kept(l.mul(grad, normal)));
}

/// [N, C, ...] as [N, groups, C / groups, ...].
View with_groups(const View& of, int64_t groups, size_t dim) {
  auto to = of;
  const auto at = static_cast<std::ptrdiff_t>(dim) + 1;
  const int64_t inner = of.sizes[dim] / groups;
  to.sizes[dim] = groups;
  to.sizes.insert(to.sizes.begin() + at, inner);
  to.strides.insert(to.strides.begin() + at, of.strides[dim]);
  to.strides[dim] *= inner;
  return to;
}

std::optional<LowerSpace> group_space(const Node& node) {
  const auto* input = node.tensor("input");
  const auto* groups = node.number("group");
  if (!input || input->dim() < 2 || !groups || input->sizes[1] % groups->toInt()) return {};
  const auto view = with_groups(*input, groups->toInt(), 1);
  LowerSpace space{view.sizes, std::vector<bool>(view.sizes.size(), true), view.strides};
  space.reduced[0] = space.reduced[1] = false;
  return space;
}

/// [C] beside [N, groups, C / groups, ...].
View channel_view(const Lower& l, const View& of) {
  auto to = with_groups(of, l.space.sizes[1], 0);
  to.sizes.insert(to.sizes.begin(), 1), to.strides.insert(to.strides.begin(), 0);
  while (to.sizes.size() < l.space.sizes.size()) to.sizes.push_back(1), to.strides.push_back(0);
  return to;
}

View group_view(const Lower& l, View of) {
  while (of.sizes.size() < l.space.sizes.size()) of.sizes.push_back(1), of.strides.push_back(0);
  return of;
}

void group_norm(Lower& l) {
  const auto groups = l.space.sizes[1];
  const int x = l.as(l.element(with_groups(l.view("input"), groups, 1)), l.number), mean = mean_of(l, x);
  const int centered = l.sub(x, mean), variance = mean_of(l, l.mul(centered, centered));
  const int rstd = l.op(Op::kRsqrt, l.add(variance, l.constant(l.real("eps", 1e-5))));
  int y = l.mul(centered, rstd);
  if (l.has("weight")) y = l.mul(y, l.as(l.element(channel_view(l, l.view("weight"))), l.number));
  if (l.has("bias")) y = l.add(y, l.as(l.element(channel_view(l, l.view("bias"))), l.number));
  l.result_at(with_groups(l.node.writes[0], groups, 1), y);
  l.result_at(group_view(l, l.node.writes[1]), mean);
  l.result_at(group_view(l, l.node.writes[2]), rstd);
}

}  // namespace

std::vector<LowerRow> norm_rows() {
  return {{"native_layer_norm", layer_norm, normalized_space},
          {"native_layer_norm_backward", layer_norm_backward, normalized_space},
          {"_fused_rms_norm", rms_norm, normalized_space},
          {"_fused_rms_norm_backward", rms_norm_backward, normalized_space},
          {"native_group_norm", group_norm, group_space}};
}

}  // namespace levin::compile
