#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "levin/compile/group.h"
#include "levin/core/error.h"

namespace levin::compile {
namespace {

/// A number of any class.
struct Cell {
  double real = 0;
  int64_t whole = 0;
};

bool is_real(Number number) {
  return number == Number::kFloat || number == Number::kDouble;
}

template <class T>
T at_byte(const void* base, int64_t element) {
  T x;
  std::memcpy(&x, static_cast<const char*>(base) + element * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return x;
}

Cell read(const void* base, int64_t place, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return {at_byte<float>(base, place), 0};
    case at::kDouble:
      return {at_byte<double>(base, place), 0};
    case at::kHalf:
      return {static_cast<float>(at_byte<c10::Half>(base, place)), 0};
    case at::kBFloat16:
      return {static_cast<float>(at_byte<c10::BFloat16>(base, place)), 0};
    case at::kBool:
      return {0, at_byte<uint8_t>(base, place) != 0};
    case at::kByte:
      return {0, at_byte<uint8_t>(base, place)};
    case at::kChar:
      return {0, at_byte<int8_t>(base, place)};
    case at::kShort:
      return {0, at_byte<int16_t>(base, place)};
    case at::kInt:
      return {0, at_byte<int32_t>(base, place)};
    default:
      return {0, at_byte<int64_t>(base, place)};
  }
}

template <class T>
void put(void* base, int64_t element, T x) {
  std::memcpy(static_cast<char*>(base) + element * static_cast<int64_t>(sizeof(T)), &x, sizeof(T));
}

void write(void* base, int64_t place, at::ScalarType dtype, Cell x) {
  switch (dtype) {
    case at::kFloat:
      return put(base, place, static_cast<float>(x.real));
    case at::kDouble:
      return put(base, place, x.real);
    case at::kHalf:
      return put(base, place, c10::Half(static_cast<float>(x.real)));
    case at::kBFloat16:
      return put(base, place, c10::BFloat16(static_cast<float>(x.real)));
    case at::kBool:
      return put(base, place, static_cast<uint8_t>(x.whole != 0));
    case at::kByte:
    case at::kChar:
      return put(base, place, static_cast<int8_t>(x.whole));
    case at::kShort:
      return put(base, place, static_cast<int16_t>(x.whole));
    case at::kInt:
      return put(base, place, static_cast<int32_t>(x.whole));
    default:
      return put(base, place, x.whole);
  }
}

Cell cast_cell(Cell x, Number from, at::ScalarType dtype) {
  if (c10::isFloatingType(dtype)) {
    double real = is_real(from) ? x.real : static_cast<double>(x.whole);
    if (dtype == at::kDouble) return {real, 0};
    const float single = is_real(from) ? static_cast<float>(real) : static_cast<float>(x.whole);
    if (dtype == at::kBFloat16) return {static_cast<float>(c10::BFloat16(single)), 0};
    if (dtype == at::kHalf) return {static_cast<float>(c10::Half(single)), 0};
    return {single, 0};
  }
  if (dtype == at::kBool) return {0, is_real(from) ? x.real != 0 : x.whole != 0};
  int64_t whole = x.whole;
  if (is_real(from)) {
    const bool fits = x.real > -9.3e18 && x.real < 9.2e18;
    whole = fits ? static_cast<int64_t>(x.real) : std::numeric_limits<int64_t>::min();
  }
  switch (dtype) {
    case at::kByte:
      return {0, static_cast<uint8_t>(whole)};
    case at::kChar:
      return {0, static_cast<int8_t>(whole)};
    case at::kShort:
      return {0, static_cast<int16_t>(whole)};
    case at::kInt:
      return {0, static_cast<int32_t>(whole)};
    default:
      return {0, whole};
  }
}

template <class T>
T python_remainder(T a, T b) {
  const T rest = std::fmod(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}

template <class T>
T floor_quotient(T a, T b) {
  if (b == 0) return a / b;
  const T rest = std::fmod(a, b);
  T whole = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) whole -= 1;
  if (whole == 0) return std::copysign(T(0), a / b);
  T down = std::floor(whole);
  return whole - down > T(0.5) ? down + 1 : down;
}

template <class T>
double real_of(ScalarOp op, T a, T b) {
  switch (op) {
    case ScalarOp::kAdd:
      return a + b;
    case ScalarOp::kSub:
      return a - b;
    case ScalarOp::kMul:
      return a * b;
    case ScalarOp::kDiv:
      return a / b;
    case ScalarOp::kFloorDiv:
      return floor_quotient(a, b);
    case ScalarOp::kTruncDiv:
      return std::trunc(a / b);
    case ScalarOp::kRemainder:
      return python_remainder(a, b);
    case ScalarOp::kFmod:
      return std::fmod(a, b);
    case ScalarOp::kPow:
      return std::pow(a, b);
    case ScalarOp::kMin:
      return a != a || b != b ? std::numeric_limits<T>::quiet_NaN() : std::min(a, b);
    case ScalarOp::kMax:
      return a != a || b != b ? std::numeric_limits<T>::quiet_NaN() : std::max(a, b);
    case ScalarOp::kAtan2:
      return std::atan2(a, b);
    case ScalarOp::kNeg:
      return -a;
    case ScalarOp::kAbs:
      return std::abs(a);
    case ScalarOp::kSign:
      return static_cast<T>((T(0) < a) - (a < T(0)));
    case ScalarOp::kExp:
      return std::exp(a);
    case ScalarOp::kExpm1:
      return std::expm1(a);
    case ScalarOp::kExp2:
      return std::exp2(a);
    case ScalarOp::kLog:
      return std::log(a);
    case ScalarOp::kLog1p:
      return std::log1p(a);
    case ScalarOp::kLog2:
      return std::log2(a);
    case ScalarOp::kLog10:
      return std::log10(a);
    case ScalarOp::kSqrt:
      return std::sqrt(a);
    case ScalarOp::kRsqrt:
      return T(1) / std::sqrt(a);
    case ScalarOp::kRecip:
      return T(1) / a;
    case ScalarOp::kSin:
      return std::sin(a);
    case ScalarOp::kCos:
      return std::cos(a);
    case ScalarOp::kTan:
      return std::tan(a);
    case ScalarOp::kTanh:
      return std::tanh(a);
    case ScalarOp::kSigmoid:
      return T(1) / (T(1) + std::exp(-a));
    case ScalarOp::kErf:
      return std::erf(a);
    case ScalarOp::kAtan:
      return std::atan(a);
    case ScalarOp::kFloor:
      return std::floor(a);
    case ScalarOp::kCeil:
      return std::ceil(a);
    case ScalarOp::kRound:
      return std::nearbyint(a);
    case ScalarOp::kTrunc:
      return std::trunc(a);
    default:
      levin::detail::fail(levin::detail::concat("[compile] ", name_of(op), " is no operation of floats"));
  }
}

int64_t whole_of(ScalarOp op, int64_t a, int64_t b) {
  const auto wrapped = [](uint64_t x) { return static_cast<int64_t>(x); };
  const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  const bool safe = b != 0 && b != -1;
  const int64_t quotient = safe ? a / b : b == 0 ? 0 : wrapped(-ua), rest = safe ? a % b : 0;
  const bool below = rest != 0 && (rest < 0) != (b < 0);
  switch (op) {
    case ScalarOp::kAdd:
      return wrapped(ua + ub);
    case ScalarOp::kSub:
      return wrapped(ua - ub);
    case ScalarOp::kMul:
      return wrapped(ua * ub);
    case ScalarOp::kFloorDiv:
      return quotient - below;
    case ScalarOp::kTruncDiv:
      return quotient;
    case ScalarOp::kRemainder:
      return below ? rest + b : rest;
    case ScalarOp::kFmod:
      return rest;
    case ScalarOp::kMin:
      return std::min(a, b);
    case ScalarOp::kMax:
      return std::max(a, b);
    case ScalarOp::kNeg:
      return wrapped(-ua);
    case ScalarOp::kAbs:
      return a < 0 ? wrapped(-ua) : a;
    case ScalarOp::kSign:
      return (a > 0) - (a < 0);
    case ScalarOp::kAnd:
      return a & b;
    case ScalarOp::kOr:
      return a | b;
    case ScalarOp::kXor:
      return a ^ b;
    case ScalarOp::kNot:
      return ~a;
    default:
      levin::detail::fail(levin::detail::concat("[compile] ", name_of(op), " is no operation of integers"));
  }
}

template <class T>
bool compared(ScalarOp op, T a, T b) {
  switch (op) {
    case ScalarOp::kEq:
      return a == b;
    case ScalarOp::kNe:
      return a != b;
    case ScalarOp::kLt:
      return a < b;
    case ScalarOp::kLe:
      return a <= b;
    case ScalarOp::kGt:
      return a > b;
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
    case ScalarOp::kAnd: case ScalarOp::kOr: case ScalarOp::kXor: case ScalarOp::kGe: case ScalarOp::kWhere:
    case ScalarOp::kRowSum: case ScalarOp::kRowMax: case ScalarOp::kRowMin: case ScalarOp::kRowProd:
    case ScalarOp::kColumnSum:
      // clang-format on
      return a >= b;
  }
  return {};
}

Cell apply(const Scalar& value, Number operand, Cell a, Cell b, Cell c) {
  const auto op = value.op;
  if (op == ScalarOp::kCast) return cast_cell(a, operand, value.dtype);
  if (op == ScalarOp::kWhere) return a.whole ? b : c;
  if (op == ScalarOp::kIsNan) return {0, a.real != a.real};
  if (op >= ScalarOp::kEq && op <= ScalarOp::kGe)
    return {0, is_real(operand) ? compared(op, a.real, b.real) : compared(op, a.whole, b.whole)};
  if (operand == Number::kBool) {  // logic
    const int64_t whole = whole_of(op, a.whole, b.whole);
    return {0, op == ScalarOp::kNot ? !a.whole : whole != 0};
  }
  if (operand == Number::kInt) return {0, whole_of(op, a.whole, b.whole)};
  if (operand == Number::kDouble) return {real_of(op, a.real, b.real), 0};
  return {static_cast<float>(real_of(op, static_cast<float>(a.real), static_cast<float>(b.real))), 0};
}

Cell reduced(ScalarOp op, Number number, Cell sum, Cell x) {
  const bool real = is_real(number);
  switch (op) {
    case ScalarOp::kRowMax:
    case ScalarOp::kRowMin: {
      const auto two = op == ScalarOp::kRowMax ? ScalarOp::kMax : ScalarOp::kMin;
      return real ? Cell{real_of(two, sum.real, x.real), 0} : Cell{0, whole_of(two, sum.whole, x.whole)};
    }
    case ScalarOp::kRowProd:
      return real ? Cell{sum.real * x.real, 0} : Cell{0, whole_of(ScalarOp::kMul, sum.whole, x.whole)};
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
      return real ? Cell{sum.real + x.real, 0} : Cell{0, whole_of(ScalarOp::kAdd, sum.whole, x.whole)};
  }
  return {};
}

Cell start_of(ScalarOp op) {
  constexpr auto most = std::numeric_limits<double>::infinity();
  switch (op) {
    case ScalarOp::kRowMax:
      return {-most, std::numeric_limits<int64_t>::min()};
    case ScalarOp::kRowMin:
      return {most, std::numeric_limits<int64_t>::max()};
    case ScalarOp::kRowProd:
      return {1, 1};
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
      return {};
  }
  return {};
}

/// The elements of the space in order, each with its coordinates.
class Space {
 public:
  explicit Space(const Group& group) : group_(group), rows_(group.rows()), columns_(group.columns()) {}
  int64_t coordinate(int64_t element, size_t dim) const {
    for (size_t d = group_.sizes.size(); d-- > dim + 1;) element /= group_.sizes[d];
    return element % group_.sizes[dim];
  }
  int64_t place(const Access& access, int64_t element) const {
    int64_t at = access.offset;
    for (size_t d = group_.sizes.size(); d-- > 0;) {
      at += element % group_.sizes[d] * access.strides[d];
      element /= group_.sizes[d];
    }
    return at;
  }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

 private:
  const Group& group_;
  int64_t rows_, columns_;
};

std::vector<Cell> reduce_all(const Scalar& value, const Space& space, const std::vector<Cell>& from) {
  const bool of_columns = value.op == ScalarOp::kColumnSum;
  const int64_t rows = space.rows(), columns = space.columns();
  std::vector<Cell> results(static_cast<size_t>(of_columns ? columns : rows), start_of(value.op));
  for (int64_t e = 0; e < rows * columns; ++e) {
    auto& result = results[static_cast<size_t>(of_columns ? e % columns : e / columns)];
    result = reduced(value.op, value.number, result, from[static_cast<size_t>(e)]);
  }
  std::vector<Cell> all(from.size());
  for (int64_t e = 0; e < rows * columns; ++e) {
    auto result = results[static_cast<size_t>(of_columns ? e % columns : e / columns)];
    if (value.number == Number::kFloat) result.real = static_cast<float>(result.real);
    all[static_cast<size_t>(e)] = result;
  }
  return all;
}

}  // namespace

void interpret(const Group& group, std::span<void* const> tensors) {
  const Space space(group);
  const auto n = static_cast<size_t>(space.rows() * space.columns());
  std::vector<std::vector<Cell>> values;
  const auto read_at = [&](const Scalar& value, size_t e) -> Cell {
    const auto& access = group.accesses[static_cast<size_t>(value.place)];
    if (value.args[1] >= 0 && !values[static_cast<size_t>(value.args[1])][e].whole) return {};
    int64_t place = space.place(access, static_cast<int64_t>(e));
    if (value.args[0] >= 0) {
      int64_t index = values[static_cast<size_t>(value.args[0])][e].whole;
      if (index < 0) index += value.gather_size;
      if (index < 0 || index >= value.gather_size)
        return {is_real(value.number) ? std::numeric_limits<double>::quiet_NaN() : 0, 0};
      place += index * value.gather_stride;
    }
    return read(tensors[static_cast<size_t>(access.tensor)], place, access.dtype);
  };
  for (const auto& value : group.values) {
    std::vector<Cell> cells(n);
    const auto arg = [&](int k, size_t e) {
      return value.args[static_cast<size_t>(k)] < 0
                 ? Cell{}
                 : values[static_cast<size_t>(value.args[static_cast<size_t>(k)])][e];
    };
    if (is_reduction(value.op)) {
      cells = reduce_all(value, space, values[static_cast<size_t>(value.args[0])]);
    } else {
      Number operand = value.number;
      if (value.op != ScalarOp::kLoad && value.args[0] >= 0)
        operand = group.values[static_cast<size_t>(value.args[0])].number;
      for (size_t e = 0; e < n; ++e) {
        if (value.op == ScalarOp::kLoad)
          cells[e] = read_at(value, e);
        else if (value.op == ScalarOp::kNumber)
          cells[e] = {value.real, value.whole};
        else if (value.op == ScalarOp::kIndex)
          cells[e] = {0, space.coordinate(static_cast<int64_t>(e), static_cast<size_t>(value.place))};
        else
          cells[e] = apply(value, operand, arg(0, e), arg(1, e), arg(2, e));
      }
    }
    values.push_back(std::move(cells));
  }
  for (const auto& store : group.stores)
    for (size_t e = 0; e < n; ++e)
      write(tensors[static_cast<size_t>(store.access.tensor)], space.place(store.access, static_cast<int64_t>(e)),
            store.access.dtype, values[static_cast<size_t>(store.value)][e]);
}

}  // namespace levin::compile
