// Activations and their backward operators, with the formulas of torch's kernels.
#include <cmath>

#include "levin/compile/lower.h"

namespace levin::compile {
namespace {

using Op = ScalarOp;

void tanh(Lower& l) {
  l.result(l.op(Op::kTanh, l.operand("self")));
}
void sigmoid(Lower& l) {
  l.result(l.op(Op::kSigmoid, l.operand("self")));
}
void tanh_backward(Lower& l) {
  const int grad = l.operand("grad_output"), y = l.operand("output");
  l.result(l.mul(grad, l.sub(l.constant(1), l.mul(y, y))));
}
void sigmoid_backward(Lower& l) {
  const int grad = l.operand("grad_output"), y = l.operand("output");
  l.result(l.mul(grad, l.mul(l.sub(l.constant(1), y), y)));
}

void relu(Lower& l) {
  const int zero = l.number == Number::kInt ? l.group.whole(0) : l.constant(0);
  l.result(l.op(Op::kMax, l.operand("self"), zero));
}
void threshold(Lower& l) {
  const int x = l.operand("self");
  l.result(l.where(l.compare(Op::kLe, x, l.operand("threshold")), l.operand("value"), x));
}
void threshold_backward(Lower& l) {
  const int below = l.compare(Op::kLe, l.operand("self"), l.operand("threshold"));
  l.result(l.where(below, l.constant(0), l.operand("grad_output")));
}

void leaky_relu(Lower& l) {
  const int x = l.operand("self");
  l.result(l.where(l.compare(Op::kGt, x, l.constant(0)), x, l.mul(x, l.constant(l.real("negative_slope", 0.01)))));
}
void leaky_relu_backward(Lower& l) {
  const int x = l.operand("self"), grad = l.operand("grad_output");
  const int slope = l.constant(l.real("negative_slope", 0.01));
  l.result(l.where(l.compare(Op::kGt, x, l.constant(0)), grad, l.mul(grad, slope)));
}

void elu(Lower& l) {
  const int x = l.operand("self");
  const double alpha = l.real("alpha", 1), scale = l.real("scale", 1), inner = l.real("input_scale", 1);
  const int below = l.mul(l.op(Op::kExpm1, l.mul(x, l.constant(inner))), l.constant(alpha * scale));
  l.result(l.where(l.compare(Op::kLe, x, l.constant(0)), below, l.mul(x, l.constant(scale))));
}
void elu_backward(Lower& l) {
  const int grad = l.operand("grad_output"), x = l.operand("self_or_result");
  const double alpha = l.real("alpha", 1), scale = l.real("scale", 1), inner = l.real("input_scale", 1);
  const int below = l.flag("is_result", false)
                        ? l.mul(l.mul(grad, l.constant(inner)), l.add(x, l.constant(alpha * scale)))
                        : l.mul(l.mul(l.mul(grad, l.constant(inner)), l.constant(alpha * scale)),
                                l.op(Op::kExp, l.mul(x, l.constant(inner))));
  l.result(l.where(l.compare(Op::kLe, x, l.constant(0)), below, l.mul(grad, l.constant(scale))));
}

void softplus(Lower& l) {
  const int x = l.operand("self"), beta = l.constant(l.real("beta", 1)), scaled = l.mul(x, beta);
  const int soft = l.div(l.op(Op::kLog1p, l.op(Op::kExp, scaled)), beta);
  l.result(l.where(l.compare(Op::kGt, scaled, l.constant(l.real("threshold", 20))), x, soft));
}
void softplus_backward(Lower& l) {
  const int grad = l.operand("grad_output"), scaled = l.mul(l.operand("self"), l.constant(l.real("beta", 1)));
  const int z = l.op(Op::kExp, scaled);
  const int soft = l.div(l.mul(grad, z), l.add(z, l.constant(1)));
  l.result(l.where(l.compare(Op::kGt, scaled, l.constant(l.real("threshold", 20))), grad, soft));
}

void hardtanh(Lower& l) {
  const int low = l.op(Op::kMax, l.operand("self"), l.constant(l.real("min_val", -1)));
  l.result(l.op(Op::kMin, low, l.constant(l.real("max_val", 1))));
}
void hardtanh_backward(Lower& l) {
  const int x = l.operand("self");
  const int below = l.compare(Op::kLe, x, l.constant(l.real("min_val", -1)));
  const int above = l.compare(Op::kGe, x, l.constant(l.real("max_val", 1)));
  l.result(l.where(l.compare(Op::kOr, below, above), l.constant(0), l.operand("grad_output")));
}

void silu(Lower& l) {
  const int x = l.operand("self");
  l.result(l.mul(x, l.op(Op::kSigmoid, x)));
}
void silu_backward(Lower& l) {
  const int grad = l.operand("grad_output"), x = l.operand("self"), s = l.op(Op::kSigmoid, x), one = l.constant(1);
  l.result(l.mul(l.mul(grad, s), l.add(one, l.mul(x, l.sub(one, s)))));
}

bool is_tanh(const Lower& l) {
  const auto* kind = l.node.number("approximate");
  return kind && kind->isString() && kind->toStringRef() == "tanh";
}

void gelu(Lower& l) {
  const int x = l.operand("self"), one = l.constant(1), half = l.constant(0.5);
  if (is_tanh(l)) {
    const int cube = l.mul(l.mul(x, x), x);
    const int inner = l.mul(l.constant(M_SQRT2 * M_2_SQRTPI * 0.5), l.add(x, l.mul(l.constant(0.044715), cube)));
    return l.result(l.mul(l.mul(half, x), l.add(one, l.op(Op::kTanh, inner))));
  }
  const int erf = l.op(Op::kErf, l.mul(x, l.constant(M_SQRT1_2)));
  l.result(l.mul(l.mul(x, half), l.add(one, erf)));
}

void gelu_backward(Lower& l) {
  const int grad = l.operand("grad_output"), x = l.operand("self"), one = l.constant(1), half = l.constant(0.5);
  if (is_tanh(l)) {
    const double beta = M_SQRT2 * M_2_SQRTPI * 0.5, kappa = 0.044715;
    const int square = l.mul(x, x), cube = l.mul(square, x);
    const int t = l.op(Op::kTanh, l.mul(l.constant(beta), l.add(x, l.mul(l.constant(kappa), cube))));
    const int left = l.mul(half, x), right = l.add(one, t);
    const int slope = l.sub(one, l.mul(t, t));
    const int inner = l.mul(l.constant(beta), l.add(one, l.mul(l.constant(3 * kappa), square)));
    const int left_slope = l.mul(half, right), right_slope = l.mul(l.mul(left, slope), inner);
    return l.result(l.mul(grad, l.add(left_slope, right_slope)));
  }
  const int cdf = l.mul(half, l.add(one, l.op(Op::kErf, l.mul(x, l.constant(M_SQRT1_2)))));
  const int pdf = l.mul(l.op(Op::kExp, l.mul(l.mul(x, x), l.constant(-0.5))), l.constant(M_2_SQRTPI * M_SQRT1_2 * 0.5));
  l.result(l.mul(grad, l.add(cdf, l.mul(x, pdf))));
}

/// Activations are of floats.
template <void (*kLower)(Lower&)>
void of_floats(Lower& l) {
  if (l.number != Number::kFloat && l.number != Number::kDouble) throw Unfit{};
  kLower(l);
}

}  // namespace

std::vector<LowerRow> activation_rows() {
  return {{"tanh", of_floats<tanh>},
          {"tanh_backward", of_floats<tanh_backward>},
          {"sigmoid", of_floats<sigmoid>},
          {"sigmoid_backward", of_floats<sigmoid_backward>},
          {"relu", relu},
          {"threshold", of_floats<threshold>},
          {"threshold_backward", of_floats<threshold_backward>},
          {"leaky_relu", of_floats<leaky_relu>},
          {"leaky_relu_backward", of_floats<leaky_relu_backward>},
          {"elu", of_floats<elu>},
          {"elu_backward", of_floats<elu_backward>},
          {"softplus", of_floats<softplus>},
          {"softplus_backward", of_floats<softplus_backward>},
          {"hardtanh", of_floats<hardtanh>},
          {"hardtanh_backward", of_floats<hardtanh_backward>},
          {"silu", of_floats<silu>},
          {"silu_backward", of_floats<silu_backward>},
          {"gelu", of_floats<gelu>},
          {"gelu_backward", of_floats<gelu_backward>}};
}

}  // namespace levin::compile
