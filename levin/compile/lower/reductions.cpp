// Sums, means, extremes, softmax.
#include "levin/compile/lower.h"

namespace levin::compile {
namespace {

using Op = ScalarOp;

/// The dimensions of an argument "dim": a number, a list, or none for all.
std::optional<LowerSpace> dims_space(const Node& node) {
  const auto* self = node.tensor("self");
  if (!self) return {};
  const auto n = self->dim();
  LowerSpace space{self->sizes, std::vector<bool>(self->sizes.size(), false), self->strides};
  const auto* dim = node.number("dim");
  std::vector<int64_t> dims;
  if (dim && dim->isInt())
    dims = {dim->toInt()};
  else if (dim && dim->isIntList())
    dims = dim->toIntVector();
  if (dims.empty())
    for (int64_t d = 0; d < n; ++d) dims.push_back(d);
  for (const auto d : dims)
    if (n > 0) space.reduced[static_cast<size_t>(d < 0 ? d + n : d)] = true;
  int64_t reduced = 1;
  for (size_t d = 0; d < space.sizes.size(); ++d)
    if (space.reduced[d]) reduced *= space.sizes[d];
  if (reduced <= 1) return {};  // a copy: torch's
  return space;
}

Number summed_in(const Lower& l) {
  return number_of(l.node.writes[0].dtype);
}

int input(Lower& l, Number number) {
  const auto of = l.view("self").dtype;
  if (number != Number::kDouble && of == at::kDouble) throw Unfit{};
  l.number = number;
  return l.as(l.element(l.aligned(l.view("self"))), number);
}

void sum(Lower& l) {
  const auto number = summed_in(l);
  if (number == Number::kBool) throw Unfit{};
  l.result(l.reduce(Op::kRowSum, input(l, number)));
}
void mean(Lower& l) {
  const auto number = summed_in(l);
  if (number != Number::kFloat && number != Number::kDouble) throw Unfit{};
  const int total = l.reduce(Op::kRowSum, input(l, number));
  l.result(l.div(total, l.constant(static_cast<double>(l.reduced_count()))));
}
template <Op kOp>
void extreme(Lower& l) {
  const auto number = summed_in(l);
  if (number == Number::kBool) throw Unfit{};
  l.result(l.reduce(kOp, input(l, number)));
}
void logsumexp(Lower& l) {
  const int x = input(l, summed_in(l)), most = l.reduce(Op::kRowMax, x);
  // Infinite ones are not subtracted, as in torch.
  const int finite = l.compare(Op::kLt, l.op(Op::kAbs, most), l.constant(std::numeric_limits<double>::infinity()));
  const int shift = l.where(finite, most, l.constant(0));
  l.result(l.add(l.op(Op::kLog, l.reduce(Op::kRowSum, l.op(Op::kExp, l.sub(x, shift)))), shift));
}

/// Elementwise results of rows along "dim".
std::optional<LowerSpace> softmax_space(const Node& node) {
  const auto* dim = node.number("dim");
  const auto& of = node.writes[0];
  if (!dim || of.dim() == 0) return {};
  LowerSpace space{of.sizes, std::vector<bool>(of.sizes.size(), false)};
  const auto d = dim->toInt();
  space.reduced[static_cast<size_t>(d < 0 ? d + of.dim() : d)] = true;
  return space;
}

void softmax(Lower& l) {
  const int x = l.operand("self"), e = l.op(Op::kExp, l.sub(x, l.reduce(Op::kRowMax, x)));
  l.result(l.div(e, l.reduce(Op::kRowSum, e)));
}
void log_softmax(Lower& l) {
  const int x = l.operand("self"), shifted = l.sub(x, l.reduce(Op::kRowMax, x));
  l.result(l.sub(shifted, l.op(Op::kLog, l.reduce(Op::kRowSum, l.op(Op::kExp, shifted)))));
}
void softmax_backward(Lower& l) {
  const int grad = l.operand("grad_output"), y = l.operand("output"), product = l.mul(grad, y);
  l.result(l.mul(y, l.sub(grad, l.reduce(Op::kRowSum, product))));
}
void log_softmax_backward(Lower& l) {
  const int grad = l.operand("grad_output"), y = l.operand("output");
  l.result(l.sub(grad, l.mul(l.op(Op::kExp, y), l.reduce(Op::kRowSum, grad))));
}

/// The norm of order 2 of all elements, or along dimensions.
void vector_norm(Lower& l) {
  if (l.real("ord", 2) != 2) throw Unfit{};
  const int x = input(l, summed_in(l));
  l.result(l.op(Op::kSqrt, l.reduce(Op::kRowSum, l.mul(x, x))));
}

}  // namespace

std::vector<LowerRow> reduction_rows() {
  return {{"sum", sum, dims_space},
          {"mean", mean, dims_space},
          {"amax", extreme<Op::kRowMax>, dims_space},
          {"amin", extreme<Op::kRowMin>, dims_space},
          {"logsumexp", logsumexp, dims_space},
          {"linalg_vector_norm", vector_norm, dims_space},
          {"_softmax", softmax, softmax_space},
          {"_log_softmax", log_softmax, softmax_space},
          {"_softmax_backward_data", softmax_backward, softmax_space},
          {"_log_softmax_backward_data", log_softmax_backward, softmax_space}};
}

}  // namespace levin::compile
