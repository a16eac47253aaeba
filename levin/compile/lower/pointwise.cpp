// Arithmetic, comparisons, logic, choices.
#include <cmath>
#include <limits>

#include "levin/compile/lower.h"

namespace levin::compile {
namespace {

using Op = ScalarOp;

/// One operation of floats on `self`.
template <Op kOp>
void unary(Lower& l) {
  l.result(l.op(kOp, l.operand("self")));
}

void floats_only(const Lower& l) {
  if (l.number != Number::kFloat && l.number != Number::kDouble) throw Unfit{};
}

template <Op kOp>
void float_unary(Lower& l) {
  floats_only(l);
  unary<kOp>(l);
}

template <Op kOp>
void binary(Lower& l) {
  if (l.number == Number::kBool) throw Unfit{};
  l.result(l.op(kOp, l.operand("self"), l.operand("other")));
}

template <Op kOp>
void compare(Lower& l) {
  l.result(l.compare(kOp, l.operand("self"), l.operand("other")));
}

int scaled(Lower& l, int x, std::string_view factor) {
  const double by = l.real(factor, 1);
  if (by == 1) return x;
  return l.mul(x, l.number == Number::kInt ? l.group.whole(l.whole(factor, 1)) : l.constant(by));
}

void add(Lower& l) {
  if (l.number == Number::kBool) throw Unfit{};
  l.result(l.add(l.operand("self"), scaled(l, l.operand("other"), "alpha")));
}
void sub(Lower& l) {
  if (l.number == Number::kBool) throw Unfit{};
  l.result(l.sub(l.operand("self"), scaled(l, l.operand("other"), "alpha")));
}
void rsub(Lower& l) {
  if (l.number == Number::kBool) throw Unfit{};
  l.result(l.sub(l.operand("other"), scaled(l, l.operand("self"), "alpha")));
}
void mul(Lower& l) {
  if (l.number == Number::kBool) return l.result(l.op(Op::kAnd, l.operand("self"), l.operand("other")));
  l.result(l.mul(l.operand("self"), l.operand("other")));
}

void div(Lower& l) {
  const auto* mode = l.node.number("rounding_mode");
  const int a = l.operand("self"), b = l.operand("other");
  if (!mode || mode->isNone()) {
    floats_only(l);
    return l.result(l.div(a, b));
  }
  if (l.number == Number::kBool) throw Unfit{};
  l.result(l.op(mode->toStringRef() == "floor" ? Op::kFloorDiv : Op::kTruncDiv, a, b));
}

void pow(Lower& l) {
  floats_only(l);
  const int x = l.operand("self");
  if (!std::holds_alternative<c10::IValue>(l.node.args[1])) return l.result(l.op(Op::kPow, x, l.operand("exponent")));
  const double exponent = l.real("exponent", 1);
  const auto recip = [&](int a) { return l.div(l.constant(1), a); };
  if (exponent == 0) return l.result(l.constant(1));
  if (exponent == 1) return l.result(x);
  if (exponent == 2) return l.result(l.mul(x, x));
  if (exponent == 3) return l.result(l.mul(l.mul(x, x), x));
  if (exponent == 0.5) return l.result(l.op(Op::kSqrt, x));
  if (exponent == -0.5) return l.result(l.op(Op::kRsqrt, x));
  if (exponent == -1) return l.result(recip(x));
  if (exponent == -2) return l.result(recip(l.mul(x, x)));
  l.result(l.op(Op::kPow, x, l.constant(exponent)));
}

void addcmul(Lower& l) {
  const int product = l.mul(scaled(l, l.operand("tensor1"), "value"), l.operand("tensor2"));
  l.result(l.add(l.operand("self"), product));
}
void addcdiv(Lower& l) {
  floats_only(l);
  const int quotient = l.div(l.operand("tensor1"), l.operand("tensor2"));
  const double value = l.real("value", 1);
  l.result(l.add(l.operand("self"), value == 1 ? quotient : l.mul(l.constant(value), quotient)));
}

void lerp(Lower& l) {
  floats_only(l);
  const int from = l.operand("self"), to = l.operand("end"), weight = l.operand("weight"), way = l.sub(to, from);
  const int near = l.add(from, l.mul(weight, way));
  const int far = l.sub(to, l.mul(way, l.sub(l.constant(1), weight)));
  const int magnitude = l.op(Op::kAbs, weight);
  l.result(l.where(l.compare(Op::kLt, magnitude, l.constant(0.5)), near, far));
}

void clamp(Lower& l) {
  if (l.number == Number::kBool) throw Unfit{};
  int x = l.operand("self");
  if (l.has("min")) x = l.op(Op::kMax, x, l.operand("min"));
  if (l.has("max")) x = l.op(Op::kMin, x, l.operand("max"));
  l.result(x);
}

void where(Lower& l) {
  l.number = number_of(l.node.writes[0].dtype);
  const int condition = l.operand("condition", Number::kBool);
  l.result(l.where(condition, l.operand("self"), l.operand("other")));
}
void masked_fill(Lower& l) {
  l.number = number_of(l.node.writes[0].dtype);
  const int mask = l.operand("mask", Number::kBool);
  l.result(l.where(mask, l.operand("value"), l.operand("self")));
}

template <Op kOp>
void logical(Lower& l) {
  if (l.node.writes[0].dtype != at::kBool) throw Unfit{};
  const int a = l.operand("self", l.number);
  const int x = l.as(a, Number::kBool);
  if constexpr (kOp == Op::kNot)
    return l.result(l.compare(Op::kNot, x, -1));
  else
    l.result(l.compare(kOp, x, l.as(l.operand("other", l.number), Number::kBool)));
}
template <Op kOp>
void bitwise(Lower& l) {
  if (l.number == Number::kFloat || l.number == Number::kDouble) throw Unfit{};
  const int a = l.operand("self");
  l.result(l.op(kOp, a, kOp == Op::kNot ? -1 : l.operand("other")));
}

void isnan(Lower& l) {
  const int x = l.tensor("self");
  const auto of = l.number_at(x);
  if (of == Number::kInt || of == Number::kBool) throw Unfit{};
  l.result(l.compare(Op::kIsNan, x, -1));
}

void sign(Lower& l) {
  if (l.number == Number::kBool) throw Unfit{};
  l.result(l.op(Op::kSign, l.operand("self")));
}

// ---- copies and constants
void copy(Lower& l) {
  const int x = l.tensor(l.has("src") ? "src" : "self");
  const auto dtype = l.node.writes[0].dtype;
  l.result(l.group.cast(x, dtype), 0, true);
}

int filled(Lower& l, double x, bool whole_number, int64_t n) {
  return whole_number && (l.number == Number::kInt || l.number == Number::kBool)
             ? l.group.whole(l.number == Number::kBool ? n != 0 : n, l.number)
             : l.group.real(x, l.number);
}
void fill(Lower& l) {
  l.number = number_of(l.node.writes[0].dtype);
  const char* name = l.has("fill_value") ? "fill_value" : "value";
  if (!std::holds_alternative<c10::IValue>(l.node.args[1])) return l.result(l.operand(name));
  const double x = l.real(name, 0);
  l.result(filled(l, x, std::abs(x) < 9e15, std::abs(x) < 9e15 ? static_cast<int64_t>(x) : 0));
}
template <int kNumber>
void constant(Lower& l) {
  l.number = number_of(l.node.writes[0].dtype);
  l.result(filled(l, kNumber, true, kNumber));
}

void arange(Lower& l) {
  l.number = number_of(l.node.writes[0].dtype);
  if (l.number != Number::kInt || l.space.sizes.size() != 1) throw Unfit{};
  const int steps = l.op(Op::kMul, l.coordinate(0), l.group.whole(l.whole("step", 1)));
  l.result(l.add(steps, l.group.whole(l.whole("start", 0))));
}

void native_dropout_backward(Lower& l) {
  l.result(l.mul(l.mul(l.operand("grad_output"), l.operand("mask")), l.constant(l.real("scale", 1))));
}

}  // namespace

std::vector<LowerRow> pointwise_rows() {
  return {{"add", add},
          {"sub", sub},
          {"rsub", rsub},
          {"mul", mul},
          {"div", div},
          {"remainder", binary<Op::kRemainder>},
          {"fmod", binary<Op::kFmod>},
          {"floor_divide", binary<Op::kFloorDiv>},
          {"minimum", binary<Op::kMin>},
          {"maximum", binary<Op::kMax>},
          {"pow", pow},
          {"neg", unary<Op::kNeg>},
          {"abs", unary<Op::kAbs>},
          {"sign", sign},
          {"sgn", sign},
          {"exp", float_unary<Op::kExp>},
          {"expm1", float_unary<Op::kExpm1>},
          {"exp2", float_unary<Op::kExp2>},
          {"log", float_unary<Op::kLog>},
          {"log1p", float_unary<Op::kLog1p>},
          {"log2", float_unary<Op::kLog2>},
          {"log10", float_unary<Op::kLog10>},
          {"sqrt", float_unary<Op::kSqrt>},
          {"rsqrt", float_unary<Op::kRsqrt>},
          {"reciprocal", float_unary<Op::kRecip>},
          {"sin", float_unary<Op::kSin>},
          {"cos", float_unary<Op::kCos>},
          {"tan", float_unary<Op::kTan>},
          {"atan", float_unary<Op::kAtan>},
          {"erf", float_unary<Op::kErf>},
          {"floor", float_unary<Op::kFloor>},
          {"ceil", float_unary<Op::kCeil>},
          {"trunc", float_unary<Op::kTrunc>},
          {"eq", compare<Op::kEq>},
          {"ne", compare<Op::kNe>},
          {"lt", compare<Op::kLt>},
          {"le", compare<Op::kLe>},
          {"gt", compare<Op::kGt>},
          {"ge", compare<Op::kGe>},
          {"logical_not", logical<Op::kNot>},
          {"logical_and", logical<Op::kAnd>},
          {"logical_or", logical<Op::kOr>},
          {"logical_xor", logical<Op::kXor>},
          {"bitwise_not", bitwise<Op::kNot>},
          {"bitwise_and", bitwise<Op::kAnd>},
          {"bitwise_or", bitwise<Op::kOr>},
          {"bitwise_xor", bitwise<Op::kXor>},
          {"isnan", isnan},
          {"addcmul", addcmul},
          {"addcdiv", addcdiv},
          {"lerp", lerp},
          {"clamp", clamp},
          {"clamp_min", clamp},
          {"clamp_max", clamp},
          {"where", where},
          {"masked_fill", masked_fill},
          {"_to_copy", copy},
          {"clone", copy},
          {"copy", copy},
          {"fill", fill},
          {"full", fill},
          {"zero", constant<0>},
          {"zeros", constant<0>},
          {"ones", constant<1>},
          {"arange", arange},
          {"native_dropout_backward", native_dropout_backward}};
}

}  // namespace levin::compile
