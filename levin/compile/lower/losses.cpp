// Losses and their backward operators.
#include "levin/compile/lower.h"

namespace levin::compile {
namespace {

using Op = ScalarOp;
enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

std::optional<LowerSpace> loss_space(const Node& node) {
  const auto* self = node.tensor("self");
  const auto* reduction = node.number("reduction");
  if (!self || !reduction) return {};
  if (reduction->toInt() == kNone) return LowerSpace{node.writes[0].sizes};
  if (self->dim() == 0) return {};
  return LowerSpace{self->sizes, std::vector<bool>(self->sizes.size(), true), self->strides};
}

void reduced_loss(Lower& l, int loss) {
  const auto reduction = l.whole("reduction", kMean);
  if (reduction == kNone) return l.result(loss);
  const int total = l.reduce(Op::kRowSum, loss);
  l.result(reduction == kSum ? total : l.div(total, l.constant(static_cast<double>(l.reduced_count()))));
}

void mse_loss(Lower& l) {
  const int way = l.sub(l.operand("self"), l.operand("target"));
  reduced_loss(l, l.mul(way, way));
}
void mse_loss_backward(Lower& l) {
  double norm = 2;
  if (l.whole("reduction", kMean) == kMean)
    for (const auto size : l.view("self").sizes) norm /= static_cast<double>(size);
  const int way = l.sub(l.operand("self"), l.operand("target"));
  l.result(l.mul(l.mul(l.constant(norm), way), l.operand("grad_output")));
}

/// One element a target.
std::optional<LowerSpace> nll_space(const Node& node) {
  const auto* self = node.tensor("self");
  const auto* target = node.tensor("target");
  const auto* reduction = node.number("reduction");
  if (!self || !target || !reduction || self->dim() != 2 || node.tensor("weight")) return {};
  LowerSpace space{target->sizes};
  if (reduction->toInt() != kNone) space.reduced = {true};
  return space;
}

void nll_loss(Lower& l) {
  const auto& self = l.view("self");
  const int target = l.tensor("target");
  const int valid = l.group.op(Op::kNe, Number::kBool, target, l.group.whole(l.whole("ignore_index", -100)));
  View rows = self;  // the row of each target; its column is the index
  rows.sizes = {self.sizes[0]}, rows.strides = {self.strides[0]};
  const int x = l.as(l.element(rows, 0, target, self.strides[1], self.sizes[1], valid), l.number);
  const int loss = l.where(valid, l.op(Op::kNeg, x), l.constant(0));
  if (l.whole("reduction", kMean) == kNone) return l.result(loss);
  const int total = l.reduce(Op::kRowSum, loss), count = l.reduce(Op::kRowSum, l.as(valid, l.number));
  l.result(l.whole("reduction", kMean) == kMean ? l.div(total, count) : total);
  l.result(count, 1);
}

void nll_loss_backward(Lower& l) {
  if (l.has("weight") || l.space.sizes.size() != 2) throw Unfit{};
  auto by_row = l.view("target");
  by_row.sizes.push_back(1), by_row.strides.push_back(0);
  const int target = l.element(by_row);
  const auto reduction = l.whole("reduction", kMean);
  auto grad_view = l.view("grad_output");
  if (reduction == kNone) grad_view.sizes.push_back(1), grad_view.strides.push_back(0);
  const int grad = l.as(l.element(l.aligned(grad_view)), l.number);
  int slope = l.op(Op::kNeg, grad);
  if (reduction == kMean) slope = l.div(slope, l.operand("total_weight"));
  const int valid = l.group.op(Op::kNe, Number::kBool, target, l.group.whole(l.whole("ignore_index", -100)));
  const int here = l.group.op(Op::kEq, Number::kBool, target, l.coordinate(1));
  l.result(l.where(l.compare(Op::kAnd, valid, here), slope, l.constant(0)));
}

}  // namespace

std::vector<LowerRow> loss_rows() {
  return {{"mse_loss", mse_loss, loss_space},
          {"mse_loss_backward", mse_loss_backward},
          {"nll_loss_forward", nll_loss, nll_space},
          {"nll_loss_backward", nll_loss_backward}};
}

}  // namespace levin::compile
