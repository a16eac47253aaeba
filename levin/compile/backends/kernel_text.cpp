#include "levin/compile/backends/kernel_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "levin/core/error.h"

namespace levin::compile::detail {

using levin::detail::concat;

std::string_view number_text(Number number) {
  switch (number) {
    case Number::kFloat:
      return "float";
    case Number::kDouble:
      return "double";
    case Number::kInt:
      return "i64";
    case Number::kBool:
      return "bool";
  }
  return "";
}

std::string_view dtype_text(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "F32";
    case at::kDouble:
      return "F64";
    case at::kHalf:
      return "F16";
    case at::kBFloat16:
      return "BF16";
    case at::kBool:
      return "B8";
    case at::kByte:
      return "U8";
    case at::kChar:
      return "I8";
    case at::kShort:
      return "I16";
    case at::kInt:
      return "I32";
    default:
      return "I64";
  }
}

std::string_view reducer_text(ScalarOp op) {
  switch (op) {
    case ScalarOp::kRowMax:
      return "Max";
    case ScalarOp::kRowMin:
      return "Min";
    case ScalarOp::kRowProd:
      return "Prod";
    // clang-format off
    case ScalarOp::kLoad: case ScalarOp::kNumber: case ScalarOp::kIndex: case ScalarOp::kCast:
    case ScalarOp::kAdd: case ScalarOp::kSub: case ScalarOp::kMul: case ScalarOp::kDiv:
    case ScalarOp::kFloorDiv: case ScalarOp::kTruncDiv: case ScalarOp::kRemainder: case ScalarOp::kFmod:
    case ScalarOp::kPow: case ScalarOp::kMin: case ScalarOp::kMax: case ScalarOp::kAtan2: case ScalarOp::kNeg:
    case ScalarOp::kAbs: case ScalarOp::kSign: case ScalarOp::kExp: case ScalarOp::kExpm1:
    case ScalarOp::kExp2: case ScalarOp::kLog: case ScalarOp::kLog1p: case ScalarOp::kLog2:
    case ScalarOp::kLog10: case ScalarOp::kSqrt: case ScalarOp::kRsqrt: case ScalarOp::kRecip: case ScalarOp::kSin:
    case ScalarOp::kCos: case ScalarOp::kTan: case ScalarOp::kTanh: case ScalarOp::kSigmoid:
    case ScalarOp::kErf: case ScalarOp::kAtan: case ScalarOp::kFloor: case ScalarOp::kCeil:
    case ScalarOp::kRound: case ScalarOp::kTrunc: case ScalarOp::kIsNan: case ScalarOp::kNot:
    case ScalarOp::kAnd: case ScalarOp::kOr: case ScalarOp::kXor: case ScalarOp::kEq: case ScalarOp::kNe:
    case ScalarOp::kLt: case ScalarOp::kLe: case ScalarOp::kGt: case ScalarOp::kGe: case ScalarOp::kWhere:
    case ScalarOp::kRowSum: case ScalarOp::kColumnSum:
      // clang-format on
      return "Sum";
  }
  return {};
}

std::string start_text(ScalarOp op, Number number) {
  const bool single = number == Number::kFloat, real = single || number == Number::kDouble;
  switch (op) {
    case ScalarOp::kRowMax:
      return real ? single ? "-INF32" : "-INF64" : "(i64)(1ull << 63)";
    case ScalarOp::kRowMin:
      return real ? single ? "INF32" : "INF64" : "(i64)~(1ull << 63)";
    case ScalarOp::kRowProd:
      return "1";
    // clang-format off
    case ScalarOp::kLoad: case ScalarOp::kNumber: case ScalarOp::kIndex: case ScalarOp::kCast:
    case ScalarOp::kAdd: case ScalarOp::kSub: case ScalarOp::kMul: case ScalarOp::kDiv:
    case ScalarOp::kFloorDiv: case ScalarOp::kTruncDiv: case ScalarOp::kRemainder: case ScalarOp::kFmod:
    case ScalarOp::kPow: case ScalarOp::kMin: case ScalarOp::kMax: case ScalarOp::kAtan2: case ScalarOp::kNeg:
    case ScalarOp::kAbs: case ScalarOp::kSign: case ScalarOp::kExp: case ScalarOp::kExpm1:
    case ScalarOp::kExp2: case ScalarOp::kLog: case ScalarOp::kLog1p: case ScalarOp::kLog2:
    case ScalarOp::kLog10: case ScalarOp::kSqrt: case ScalarOp::kRsqrt: case ScalarOp::kRecip: case ScalarOp::kSin:
    case ScalarOp::kCos: case ScalarOp::kTan: case ScalarOp::kTanh: case ScalarOp::kSigmoid:
    case ScalarOp::kErf: case ScalarOp::kAtan: case ScalarOp::kFloor: case ScalarOp::kCeil:
    case ScalarOp::kRound: case ScalarOp::kTrunc: case ScalarOp::kIsNan: case ScalarOp::kNot:
    case ScalarOp::kAnd: case ScalarOp::kOr: case ScalarOp::kXor: case ScalarOp::kEq: case ScalarOp::kNe:
    case ScalarOp::kLt: case ScalarOp::kLe: case ScalarOp::kGt: case ScalarOp::kGe: case ScalarOp::kWhere:
    case ScalarOp::kRowSum: case ScalarOp::kColumnSum:
      // clang-format on
      return "0";
  }
  return {};
}

std::string constant_text(const Scalar& value) {
  if (value.number == Number::kBool) return value.whole ? "true" : "false";
  if (value.number == Number::kInt) return concat("((i64)", static_cast<uint64_t>(value.whole), "ull)");
  const bool single = value.number == Number::kFloat;
  if (std::isnan(value.real)) return single ? "NAN32" : "NAN64";
  if (std::isinf(value.real)) return concat(value.real < 0 ? "(-" : "(", single ? "INF32)" : "INF64)");
  char text[40];
  std::snprintf(text, sizeof text, single ? "(%.9ef)" : "(%.17e)", value.real);
  return text;
}

std::string operation_text(const Scalar& value, Number operand, const std::string& a, const std::string& b,
                           const std::string& c) {
  const auto infix = [&](const char* sign) { return concat("(", a, " ", sign, " ", b, ")"); };
  const auto call = [&] {
    return b.empty() ? concat("f_", name_of(value.op), "(", a, ")")
                     : concat("f_", name_of(value.op), "(", a, ", ", b, ")");
  };
  switch (value.op) {
    case ScalarOp::kCast: {
      const auto number = number_text(value.number);
      if (value.dtype == at::kBool) return concat("(", a, " != 0)");
      const bool from_real = operand == Number::kFloat || operand == Number::kDouble;
      const auto plain =
          value.number == Number::kInt && from_real ? concat("whole(", a, ")") : concat("(", number, ")", a);
      if (value.dtype == at::kFloat || value.dtype == at::kDouble || value.dtype == at::kLong) return plain;
      return concat("rounded<", dtype_text(value.dtype), ">(", plain, ")");
    }
    case ScalarOp::kAdd:
      return infix("+");
    case ScalarOp::kSub:
      return infix("-");
    case ScalarOp::kMul:
      return infix("*");
    case ScalarOp::kEq:
      return infix("==");
    case ScalarOp::kNe:
      return infix("!=");
    case ScalarOp::kLt:
      return infix("<");
    case ScalarOp::kLe:
      return infix("<=");
    case ScalarOp::kGt:
      return infix(">");
    case ScalarOp::kGe:
      return infix(">=");
    case ScalarOp::kAnd:
      return infix("&");
    case ScalarOp::kOr:
      return infix("|");
    case ScalarOp::kXor:
      return infix("^");
    case ScalarOp::kNeg:
      return concat("(-", a, ")");
    case ScalarOp::kNot:
      return operand == Number::kBool ? concat("(!", a, ")") : concat("(~", a, ")");
    case ScalarOp::kIsNan:
      return concat("(", a, " != ", a, ")");
    case ScalarOp::kWhere:
      return concat("(", a, " ? ", b, " : ", c, ")");
    // clang-format off
    case ScalarOp::kLoad: case ScalarOp::kNumber: case ScalarOp::kIndex: case ScalarOp::kDiv:
    case ScalarOp::kFloorDiv: case ScalarOp::kTruncDiv: case ScalarOp::kRemainder: case ScalarOp::kFmod:
    case ScalarOp::kPow: case ScalarOp::kMin: case ScalarOp::kMax: case ScalarOp::kAtan2: case ScalarOp::kAbs:
    case ScalarOp::kSign: case ScalarOp::kExp: case ScalarOp::kExpm1: case ScalarOp::kExp2:
    case ScalarOp::kLog: case ScalarOp::kLog1p: case ScalarOp::kLog2: case ScalarOp::kLog10:
    case ScalarOp::kSqrt: case ScalarOp::kRsqrt: case ScalarOp::kRecip: case ScalarOp::kSin: case ScalarOp::kCos:
    case ScalarOp::kTan: case ScalarOp::kTanh: case ScalarOp::kSigmoid: case ScalarOp::kErf:
    case ScalarOp::kAtan: case ScalarOp::kFloor: case ScalarOp::kCeil: case ScalarOp::kRound:
    case ScalarOp::kTrunc: case ScalarOp::kRowSum: case ScalarOp::kRowMax: case ScalarOp::kRowMin:
    case ScalarOp::kRowProd: case ScalarOp::kColumnSum:
      // clang-format on
      return call();
  }
  return {};
}

namespace {

/// index < n, where n is a multiple of the vector: alike for all of the vector.
bool is_border(const Group& group, const Scalar& value, int vector, int vector_dim) {
  if (value.op != ScalarOp::kLt && value.op != ScalarOp::kGe) return false;
  const auto& a = group.values[static_cast<size_t>(value.args[0])];
  const auto& b = group.values[static_cast<size_t>(value.args[1])];
  return a.op == ScalarOp::kIndex && a.place == vector_dim && b.op == ScalarOp::kNumber && b.number == Number::kInt &&
         b.whole % vector == 0;
}

}  // namespace

GroupText::GroupText(const Group& group, int vector, int vector_dim, bool aligned)
    : group_(group),
      vector_(vector),
      vector_dim_(vector_dim),
      aligned_(aligned),
      levels_(group.levels()),
      phases_(group.phases()) {
  const bool by_rows = vector_dim >= 0 && vector_dim < group.row_dims;
  for (const auto& value : group.values) {
    bool varies = false;
    for (const int arg : value.args) varies = varies || (arg >= 0 && varies_[static_cast<size_t>(arg)]);
    if (value.op == ScalarOp::kLoad && vector_dim >= 0)
      varies = varies || group.accesses[static_cast<size_t>(value.place)].strides[static_cast<size_t>(vector_dim)] != 0;
    if (value.op == ScalarOp::kIndex) varies = value.place == vector_dim;
    if (value.op == ScalarOp::kColumnSum)
      varies = !by_rows && vector_dim >= 0;
    else if (is_reduction(value.op))
      varies = by_rows;
    if (is_border(group, value, vector, vector_dim)) varies = false;
    varies_.push_back(varies);
  }
  const auto look = [&](const Access& access) {
    int64_t last = access.offset;
    for (size_t d = 0; d < group.sizes.size(); ++d) last += (group.sizes[d] - 1) * access.strides[d];
    wide_ = wide_ || last >= int64_t{1} << 31;
  };
  for (const auto& access : group.accesses) look(access);
  for (const auto& store : group.stores) look(store.access);
  wide_ = wide_ || group.elements() >= int64_t{1} << 31;
}

bool GroupText::is_vector(const Access& access) const {
  if (vector_ == 1 || vector_dim_ < 0 || !aligned_) return false;
  const auto dim = static_cast<size_t>(vector_dim_);
  if (access.strides[dim] != 1) return false;
  const int64_t step = std::min<int64_t>(vector_, 16 / static_cast<int64_t>(c10::elementSize(access.dtype)));
  if (access.offset % step != 0) return false;
  for (size_t d = 0; d < group_.sizes.size(); ++d)
    if (d != dim && group_.sizes[d] > 1 && access.strides[d] % step != 0) return false;
  return true;
}

bool GroupText::is_cacheable(int i) const {
  const auto& value = group_.values[static_cast<size_t>(i)];
  if (value.op != ScalarOp::kLoad || value.args[0] >= 0 || value.args[1] >= 0) return false;
  return is_vector(group_.accesses[static_cast<size_t>(value.place)]) && levels_[static_cast<size_t>(i)] == kElement;
}

bool GroupText::is_array(int value) const {
  const bool by_rows = vector_dim_ >= 0 && vector_dim_ < group_.row_dims;
  return by_rows && group_.row_dims < static_cast<int>(group_.sizes.size()) && varies(value) &&
         !(levels_[static_cast<size_t>(value)] & kColumnLevel);
}

std::string GroupText::name(int i) const {
  const auto& value = group_.values[static_cast<size_t>(i)];
  if (value.op == ScalarOp::kNumber) return constant_text(value);
  if (value.op == ScalarOp::kIndex)
    return value.place == vector_dim_ && vector_ > 1 ? concat("(i64)(c", value.place, " + v)")
                                                     : concat("(i64)c", value.place);
  return concat("v", i, is_array(i) ? "[v]" : "");
}

std::string GroupText::place(const Access& access) const {
  std::string text;
  for (size_t d = 0; d < group_.sizes.size(); ++d) {
    if (access.strides[d] == 0 || group_.sizes[d] == 1) continue;
    if (!text.empty()) text += " + ";
    text += concat("c", d);
    if (access.strides[d] != 1) text += concat(" * ", access.strides[d]);
  }
  if (access.offset != 0 || text.empty()) text += concat(text.empty() ? "" : " + ", access.offset);
  return text;
}

std::string GroupText::coordinates(int from, int to, const std::string& index) const {
  std::string text, rest = index;
  for (int d = to - 1; d >= from; --d) {
    const bool of_vector = d == vector_dim_ && vector_ > 1;
    const int64_t size = group_.sizes[static_cast<size_t>(d)] / (of_vector ? vector_ : 1);
    const auto at = d == from ? rest : concat(rest, " % ", size, "u");
    text += concat("const ", index_type(), " c", d, " = ", of_vector ? concat("(", at, ") * ", vector_) : at, ";\n");
    if (d > from) {
      text += concat("const ", wide_ ? "u64" : "u32", " q", d, " = ", rest, " / ", size, "u;\n");
      rest = concat("q", d);
    }
  }
  return text;
}

std::string GroupText::load_place(int i, bool each) const {
  const auto& value = group_.values[static_cast<size_t>(i)];
  const auto& access = group_.accesses[static_cast<size_t>(value.place)];
  auto text = place(access);
  if (each && vector_ > 1 && access.strides[static_cast<size_t>(vector_dim_)] != 0)
    text += concat(" + v * ", access.strides[static_cast<size_t>(vector_dim_)]);
  if (value.args[0] >= 0) text += concat(" + i", i, " * ", value.gather_stride, "ll");
  return text;
}

std::string GroupText::cached_load(int i, const std::string& k) const {
  const auto& access = group_.accesses[static_cast<size_t>(group_.values[static_cast<size_t>(i)].place)];
  return concat("r", i, "[", k, "].load(p", access.tensor, ", ", place(access), ");\n");
}

std::string GroupText::expression(int i) const {
  const auto& value = group_.values[static_cast<size_t>(i)];
  const auto text = [&](int k) {
    const int arg = value.args[static_cast<size_t>(k)];
    return arg < 0 ? std::string() : name(arg);
  };
  Number operand = value.number;
  if (value.args[0] >= 0) operand = group_.values[static_cast<size_t>(value.args[0])].number;
  if (is_border(group_, value, vector_, vector_dim_))  // of the vector's first element
    return operation_text(value, operand, concat("(i64)c", vector_dim_), text(1), {});
  return operation_text(value, operand, text(0), text(1), text(2));
}

std::string GroupText::block(const std::vector<int>& values, const std::string& k, const std::string& each,
                             const std::string& before, const std::string& after) const {
  std::string once, inner;
  for (const int i : values) {
    const auto& value = group_.values[static_cast<size_t>(i)];
    if (value.op == ScalarOp::kNumber || value.op == ScalarOp::kIndex) continue;
    const auto number = number_text(value.number);
    const auto declared = is_array(i) ? concat("v", i, "[v] = ") : concat("const ", number, " v", i, " = ");
    if (value.op != ScalarOp::kLoad) {
      (varies(i) ? inner : once) += concat(declared, expression(i), ";\n");
      continue;
    }
    const auto& access = group_.accesses[static_cast<size_t>(value.place)];
    const auto dtype = dtype_text(access.dtype);
    const int index = value.args[0], guard = value.args[1];
    const bool uniform = (index < 0 || !varies(index)) && (guard < 0 || !varies(guard));
    const bool whole_vector =
        uniform && varies(i) && is_vector(access) && value.gather_stride % std::max(vector_, 1) == 0;
    std::string condition, prepare;
    if (guard >= 0) condition = name(guard);
    if (index >= 0) {
      prepare = concat("i64 i", i, " = ", name(index), "; if (i", i, " < 0) i", i, " += ", value.gather_size, "ll;\n");
      condition += concat(condition.empty() ? "" : " && ", "i", i, " >= 0 && i", i, " < ", value.gather_size, "ll");
    }
    if (whole_vector) {
      const bool cached = !k.empty() && is_cacheable(i);
      if (!cached) {
        once += concat(prepare, "Pack<", dtype, ", ", vector_, "> r", i, "; ");
        const auto load = concat("r", i, ".load(p", access.tensor, ", ", load_place(i, false), ");\n");
        once += condition.empty()
                    ? load
                    : concat("if (", condition, ") ", load.substr(0, load.size() - 1), " else r", i, ".clear();\n");
      }
      auto got = concat("r", i, cached ? concat("[", k, "]") : "", ".get(v)");
      if (index >= 0 && c10::isFloatingType(access.dtype))
        got = concat("(", guard >= 0 ? concat("!", name(guard), " || ") : "", "(i", i, " >= 0 && i", i, " < ",
                     value.gather_size, "ll) ? ", got, " : ", value.number == Number::kFloat ? "NAN32" : "NAN64", ")");
      inner += concat(declared, got, ";\n");
      continue;
    }
    const auto got = concat("read<", dtype, ">(p", access.tensor, ", ", load_place(i, varies(i)), ")");
    auto otherwise = std::string("(") + std::string(number) + ")0";
    if (index >= 0 && c10::isFloatingType(access.dtype))
      otherwise = concat(guard >= 0 ? concat("!", name(guard), " ? (", number, ")0 : ") : "",
                         value.number == Number::kFloat ? "NAN32" : "NAN64");
    (varies(i) ? inner : once) +=
        concat(prepare, declared, condition.empty() ? got : concat("(", condition, ") ? ", got, " : (", otherwise, ")"),
               ";\n");
  }
  std::string text = once + before;
  if (!inner.empty() || !each.empty()) {
    if (vector_ > 1)
      text += concat("#pragma unroll\nfor (int v = 0; v < ", vector_, "; ++v) {\n", inner, each, "}\n");
    else
      text += concat("{ enum { v = 0 };\n", inner, each, "}\n");
  }
  return text + after;
}

std::vector<int> GroupText::needed(const std::vector<int>& sinks, const std::function<bool(int)>& is_there) const {
  std::vector<bool> wanted(group_.values.size(), false);
  for (const int sink : sinks) wanted[static_cast<size_t>(sink)] = true;
  std::vector<int> values;
  for (size_t i = group_.values.size(); i-- > 0;) {
    if (!wanted[i] || is_there(static_cast<int>(i))) continue;
    values.push_back(static_cast<int>(i));
    for (const int arg : group_.values[i].args)
      if (arg >= 0) wanted[static_cast<size_t>(arg)] = true;
  }
  std::reverse(values.begin(), values.end());
  return values;
}

}  // namespace levin::compile::detail
