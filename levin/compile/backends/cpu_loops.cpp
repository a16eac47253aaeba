// The loops of the CPU, over blocks that lie in the first cache, compiled for several generations of processors. (Not
// by target_clones: its resolvers run before sanitizers are ready.)
#include "levin/compile/backends/cpu_loops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <c10/util/Half.h>

#include "levin/core/error.h"

#define LEVIN_INLINE inline __attribute__((always_inline))

namespace levin::compile::detail {
namespace {

// Registers of one line; never an argument or a result by value, whose place would depend on what the machine has.
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Shorts __attribute__((vector_size(32)));

LEVIN_INLINE void load(Floats& to, const Operand& from, int64_t i) {
  std::memcpy(&to, static_cast<const float*>(from.data) + i * from.step, sizeof to);
}
LEVIN_INLINE void load(Ints& to, const Operand& from, int64_t i) {
  std::memcpy(&to, static_cast<const int32_t*>(from.data) + i * from.step, sizeof to);
}
template <class V>
LEVIN_INLINE void save(void* to, int64_t i, const V& x) {
  std::memcpy(static_cast<char*>(to) + i * 4, &x, sizeof x);
}

/// e to the x, within 2 units of the last place.
LEVIN_INLINE void exp_of(Floats& y, const Floats& x) {
  const Floats low = Floats{} - 104.f, high = Floats{} + 89.f;
  Floats t = x < low ? low : x;
  t = t > high ? high : t;
  const Floats magic = Floats{} + 12582912.f;
  Floats n = t * 1.44269504088896341f + magic;
  n = n - magic;
  Floats r = t - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Floats p = Floats{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  // In two steps: the exponent reaches below and above that of floats.
  const Ints whole = __builtin_convertvector(n, Ints), half = whole >> 1, rest = whole - half;
  const Ints first = (half + 127) << 23, second = (rest + 127) << 23;
  Floats scale_first, scale_second;
  std::memcpy(&scale_first, &first, sizeof first);
  std::memcpy(&scale_second, &second, sizeof second);
  p = p * scale_first * scale_second;
  y = x != x ? x : p;
}

LEVIN_INLINE void abs_of(Floats& y, const Floats& x) {
  Ints bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits = bits & 0x7fffffff;
  std::memcpy(&y, &bits, sizeof bits);
}
LEVIN_INLINE void sign_from(Floats& y, const Floats& x) {
  Ints bits, sign;
  std::memcpy(&bits, &y, sizeof bits);
  std::memcpy(&sign, &x, sizeof sign);
  bits = (bits & 0x7fffffff) | (sign & std::numeric_limits<int32_t>::min());
  std::memcpy(&y, &bits, sizeof bits);
}

LEVIN_INLINE void tanh_of(Floats& y, const Floats& x) {
  Floats a, e;
  abs_of(a, x);
  exp_of(e, a * -2.f);
  Floats far = (1.f - e) / (1.f + e);
  sign_from(far, x);
  const Floats s = x * x;
  Floats p = Floats{} - 0.00886323553f;
  p = p * s + 0.0218694885f;
  p = p * s - 0.0539682540f;
  p = p * s + 0.133333333f;
  p = p * s - 0.333333333f;
  const Floats near = x + x * s * p;
  y = a < 0.3f ? near : far;
  y = x != x ? x : y;
}

/// The error function: its series below 1, a rational one times exp(-x * x) above (Abramowitz and Stegun 7.1.26).
LEVIN_INLINE void erf_of(Floats& y, const Floats& x) {
  const Floats s = x * x;
  Floats p = Floats{} + 1.3122532963802805e-8f;
  p = p * s - 1.6365844691234924e-7f;
  p = p * s + 1.6462114365889246e-6f;
  p = p * s - 1.4925650358406252e-5f;
  p = p * s + 1.2055332981789664e-4f;
  p = p * s - 8.548327023450853e-4f;
  p = p * s + 5.223977625442188e-3f;
  p = p * s - 2.686617064513125e-2f;
  p = p * s + 1.1283791670955126e-1f;
  p = p * s - 3.7612638903183754e-1f;
  p = p * s + 1.1283791670955126f;
  const Floats near = p * x;
  Floats a, e;
  abs_of(a, x);
  const Floats t = 1.f / (1.f + 0.3275911f * a);
  exp_of(e, -s);
  Floats q = Floats{} + 1.061405429f;
  q = q * t - 1.453152027f;
  q = q * t + 1.421413741f;
  q = q * t - 0.284496736f;
  q = q * t + 0.254829592f;
  Floats far = 1.f - q * t * e;
  sign_from(far, x);
  y = a < 1.f ? near : far;
  y = x != x ? x : y;
}

LEVIN_INLINE void sigmoid_of(Floats& y, const Floats& x) {
  Floats e;
  exp_of(e, -x);
  y = 1.f / (1.f + e);
}

LEVIN_INLINE void round_bfloat16(Floats& y, const Floats& x) {
  Words bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  Floats rounded;
  std::memcpy(&rounded, &bits, sizeof bits);
  y = x != x ? x : rounded;
}

template <class T>
T least_or_most(bool most, T a, T b) {
  if (a != a) return a;
  return most ? (a > b ? a : b) : (a < b ? a : b);
}

/// Operations that need a loop of single numbers.
template <class T>
T single(ScalarOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case ScalarOp::kDiv:
        return a / b;
      case ScalarOp::kPow:
        return std::pow(a, b);
      case ScalarOp::kAtan2:
        return std::atan2(a, b);
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
      case ScalarOp::kTruncDiv:
        return std::trunc(a / b);
      case ScalarOp::kFmod:
        return std::fmod(a, b);
      case ScalarOp::kRemainder: {
        const T rest = std::fmod(a, b);
        return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
      }
      case ScalarOp::kFloorDiv: {
        if (b == 0) return a / b;
        const T rest = std::fmod(a, b);
        T whole = (a - rest) / b;
        if (rest != 0 && (b < 0) != (rest < 0)) whole -= 1;
        if (whole == 0) return std::copysign(T(0), a / b);
        const T down = std::floor(whole);
        return whole - down > T(0.5) ? down + 1 : down;
      }
      // clang-format off
      case ScalarOp::kLoad: case ScalarOp::kNumber: case ScalarOp::kIndex: case ScalarOp::kCast:
      case ScalarOp::kAdd: case ScalarOp::kSub: case ScalarOp::kMul: case ScalarOp::kMin: case ScalarOp::kMax:
      case ScalarOp::kNeg: case ScalarOp::kAbs: case ScalarOp::kSign: case ScalarOp::kIsNan:
      case ScalarOp::kNot: case ScalarOp::kAnd: case ScalarOp::kOr: case ScalarOp::kXor: case ScalarOp::kEq:
      case ScalarOp::kNe: case ScalarOp::kLt: case ScalarOp::kLe: case ScalarOp::kGt: case ScalarOp::kGe:
      case ScalarOp::kWhere: case ScalarOp::kRowSum: case ScalarOp::kRowMax: case ScalarOp::kRowMin:
      case ScalarOp::kRowProd: case ScalarOp::kColumnSum:
        // clang-format on
        break;
    }
  } else {
    const bool safe = b != 0 && b != -1;
    const T quotient = safe ? a / b : b == 0 ? 0 : static_cast<T>(-static_cast<uint64_t>(a)), rest = safe ? a % b : 0;
    const bool below = rest != 0 && (rest < 0) != (b < 0);
    switch (op) {
      case ScalarOp::kFloorDiv:
        return quotient - below;
      case ScalarOp::kTruncDiv:
        return quotient;
      case ScalarOp::kRemainder:
        return below ? rest + b : rest;
      case ScalarOp::kFmod:
        return rest;
      case ScalarOp::kAnd:
        return a & b;
      case ScalarOp::kOr:
        return a | b;
      case ScalarOp::kXor:
        return a ^ b;
      case ScalarOp::kNot:
        return ~a;
      // clang-format off
      case ScalarOp::kLoad: case ScalarOp::kNumber: case ScalarOp::kIndex: case ScalarOp::kCast:
      case ScalarOp::kAdd: case ScalarOp::kSub: case ScalarOp::kMul: case ScalarOp::kDiv: case ScalarOp::kPow:
      case ScalarOp::kMin: case ScalarOp::kMax: case ScalarOp::kAtan2: case ScalarOp::kNeg:
      case ScalarOp::kAbs: case ScalarOp::kSign: case ScalarOp::kExp: case ScalarOp::kExpm1:
      case ScalarOp::kExp2: case ScalarOp::kLog: case ScalarOp::kLog1p: case ScalarOp::kLog2:
      case ScalarOp::kLog10: case ScalarOp::kSqrt: case ScalarOp::kRsqrt: case ScalarOp::kRecip: case ScalarOp::kSin:
      case ScalarOp::kCos: case ScalarOp::kTan: case ScalarOp::kTanh: case ScalarOp::kSigmoid:
      case ScalarOp::kErf: case ScalarOp::kAtan: case ScalarOp::kFloor: case ScalarOp::kCeil:
      case ScalarOp::kRound: case ScalarOp::kTrunc: case ScalarOp::kIsNan: case ScalarOp::kEq:
      case ScalarOp::kNe: case ScalarOp::kLt: case ScalarOp::kLe: case ScalarOp::kGt: case ScalarOp::kGe:
      case ScalarOp::kWhere: case ScalarOp::kRowSum: case ScalarOp::kRowMax: case ScalarOp::kRowMin:
      case ScalarOp::kRowProd: case ScalarOp::kColumnSum:
        // clang-format on
        break;
    }
  }
  using Wide = std::conditional_t<std::is_floating_point_v<T>, T, uint64_t>;  // integers wrap around
  switch (op) {
    case ScalarOp::kAdd:
      return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    case ScalarOp::kSub:
      return static_cast<T>(static_cast<Wide>(a) - static_cast<Wide>(b));
    case ScalarOp::kMul:
      return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    case ScalarOp::kMin:
      return least_or_most(false, a, b);
    case ScalarOp::kMax:
      return least_or_most(true, a, b);
    case ScalarOp::kNeg:
      return static_cast<T>(-static_cast<Wide>(a));
    case ScalarOp::kAbs:
      return a < 0 ? static_cast<T>(-static_cast<Wide>(a)) : a == 0 ? T(0) : a;
    case ScalarOp::kSign:
      return static_cast<T>((T(0) < a) - (a < T(0)));
    default:
      levin::detail::fail(levin::detail::concat("[compile] the CPU has no loop for ", name_of(op)));
  }
}

template <class T>
int32_t mask_of(ScalarOp op, T a, T b) {
  switch (op) {
    case ScalarOp::kEq:
      return -(a == b);
    case ScalarOp::kNe:
      return -(a != b);
    case ScalarOp::kLt:
      return -(a < b);
    case ScalarOp::kLe:
      return -(a <= b);
    case ScalarOp::kGt:
      return -(a > b);
    case ScalarOp::kGe:
      return -(a >= b);
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
    case ScalarOp::kAnd: case ScalarOp::kOr: case ScalarOp::kXor: case ScalarOp::kWhere:
    case ScalarOp::kRowSum: case ScalarOp::kRowMax: case ScalarOp::kRowMin: case ScalarOp::kRowProd:
    case ScalarOp::kColumnSum:
      // clang-format on
      return -(a != a);  // kIsNan
  }
  return {};
}

template <class T>
const T& at(const Operand& of, int64_t i) {
  static const T none{};
  return of.data ? static_cast<const T*>(of.data)[of.step ? i : 0] : none;
}

bool is_comparison(ScalarOp op) {
  return (op >= ScalarOp::kEq && op <= ScalarOp::kGe) || op == ScalarOp::kIsNan;
}

template <class T>
void run_singly(const Instruction& in, int64_t n) {
  if (is_comparison(in.op)) {
    for (int64_t i = 0; i < n; ++i) static_cast<int32_t*>(in.out)[i] = mask_of(in.op, at<T>(in.a, i), at<T>(in.b, i));
  } else if (in.op == ScalarOp::kWhere) {
    for (int64_t i = 0; i < n; ++i) static_cast<T*>(in.out)[i] = at<int32_t>(in.a, i) ? at<T>(in.b, i) : at<T>(in.c, i);
  } else {
    for (int64_t i = 0; i < n; ++i) static_cast<T*>(in.out)[i] = single(in.op, at<T>(in.a, i), at<T>(in.b, i));
  }
}

void run_bools(const Instruction& in, int64_t n) {
  auto* out = static_cast<int32_t*>(in.out);
  for (int64_t i = 0; i < n; ++i) {
    const int32_t a = at<int32_t>(in.a, i), b = at<int32_t>(in.b, i);
    switch (in.op) {
      case ScalarOp::kAnd:
      case ScalarOp::kMul:
        out[i] = a & b;
        break;
      case ScalarOp::kOr:
        out[i] = a | b;
        break;
      case ScalarOp::kXor:
        out[i] = a ^ b;
        break;
      case ScalarOp::kNot:
        out[i] = ~a;
        break;
      case ScalarOp::kWhere:
        out[i] = a ? b : at<int32_t>(in.c, i);
        break;
      // clang-format off
      case ScalarOp::kLoad: case ScalarOp::kNumber: case ScalarOp::kIndex: case ScalarOp::kCast:
      case ScalarOp::kAdd: case ScalarOp::kSub: case ScalarOp::kDiv: case ScalarOp::kFloorDiv:
      case ScalarOp::kTruncDiv: case ScalarOp::kRemainder: case ScalarOp::kFmod: case ScalarOp::kPow:
      case ScalarOp::kMin: case ScalarOp::kMax: case ScalarOp::kAtan2: case ScalarOp::kNeg:
      case ScalarOp::kAbs: case ScalarOp::kSign: case ScalarOp::kExp: case ScalarOp::kExpm1:
      case ScalarOp::kExp2: case ScalarOp::kLog: case ScalarOp::kLog1p: case ScalarOp::kLog2:
      case ScalarOp::kLog10: case ScalarOp::kSqrt: case ScalarOp::kRsqrt: case ScalarOp::kRecip: case ScalarOp::kSin:
      case ScalarOp::kCos: case ScalarOp::kTan: case ScalarOp::kTanh: case ScalarOp::kSigmoid:
      case ScalarOp::kErf: case ScalarOp::kAtan: case ScalarOp::kFloor: case ScalarOp::kCeil:
      case ScalarOp::kRound: case ScalarOp::kTrunc: case ScalarOp::kIsNan: case ScalarOp::kEq:
      case ScalarOp::kNe: case ScalarOp::kLt: case ScalarOp::kLe: case ScalarOp::kGt: case ScalarOp::kGe:
      case ScalarOp::kRowSum: case ScalarOp::kRowMax: case ScalarOp::kRowMin: case ScalarOp::kRowProd:
      case ScalarOp::kColumnSum:
        // clang-format on
        out[i] = mask_of(in.op, a ? 1 : 0, b ? 1 : 0);
    }
  }
}

template <class From>
void cast_from(const Instruction& in, int64_t n) {
  const bool of_bool = in.operand == Number::kBool;
  for (int64_t i = 0; i < n; ++i) {
    From x = at<From>(in.a, i);
    if (of_bool) x = x != 0;
    if (in.dtype == at::kBool) {
      static_cast<int32_t*>(in.out)[i] = -(x != 0);
    } else if (in.dtype == at::kDouble) {
      static_cast<double*>(in.out)[i] = static_cast<double>(x);
    } else if (in.number == Number::kFloat) {
      float y = static_cast<float>(x);
      if (in.dtype == at::kHalf) y = static_cast<float>(c10::Half(y));
      static_cast<float*>(in.out)[i] = y;
    } else {
      int64_t whole;
      if constexpr (std::is_floating_point_v<From>)
        whole = x > From(-9.3e18) && x < From(9.2e18) ? static_cast<int64_t>(x) : std::numeric_limits<int64_t>::min();
      else
        whole = x;
      switch (in.dtype) {
        case at::kByte:
          whole = static_cast<uint8_t>(whole);
          break;
        case at::kChar:
          whole = static_cast<int8_t>(whole);
          break;
        case at::kShort:
          whole = static_cast<int16_t>(whole);
          break;
        case at::kInt:
          whole = static_cast<int32_t>(whole);
          break;
        default:
          break;
      }
      static_cast<int64_t*>(in.out)[i] = whole;
    }
  }
}

#define LEVIN_LOOP(expression)              \
  for (int64_t i = 0; i < n; i += kLanes) { \
    Floats a = {}, b = {}, y = {};          \
    load(a, in.a, i);                       \
    if (in.b.data) load(b, in.b, i);        \
    expression;                             \
    save(in.out, i, y);                     \
  }                                         \
  return true
#define LEVIN_COMPARE(sign)                 \
  for (int64_t i = 0; i < n; i += kLanes) { \
    Floats a = {}, b = {};                  \
    load(a, in.a, i);                       \
    load(b, in.b, i);                       \
    const Ints y = a sign b;                \
    save(in.out, i, y);                     \
  }                                         \
  return true

/// The common operations of floats; false for the others.
LEVIN_INLINE bool run_floats_body(const Instruction& in, int64_t n) {
  switch (in.op) {
    case ScalarOp::kAdd:
      LEVIN_LOOP(y = a + b);
    case ScalarOp::kSub:
      LEVIN_LOOP(y = a - b);
    case ScalarOp::kMul:
      LEVIN_LOOP(y = a * b);
    case ScalarOp::kDiv:
      LEVIN_LOOP(y = a / b);
    case ScalarOp::kRecip:
      LEVIN_LOOP(y = 1.f / a);
    case ScalarOp::kNeg:
      LEVIN_LOOP(y = -a);
    case ScalarOp::kAbs:
      LEVIN_LOOP(abs_of(y, a));
    case ScalarOp::kMax:
      LEVIN_LOOP(y = a > b ? a : b; y = a != a ? a : y);
    case ScalarOp::kMin:
      LEVIN_LOOP(y = a < b ? a : b; y = a != a ? a : y);
    case ScalarOp::kExp:
      LEVIN_LOOP(exp_of(y, a));
    case ScalarOp::kTanh:
      LEVIN_LOOP(tanh_of(y, a));
    case ScalarOp::kSigmoid:
      LEVIN_LOOP(sigmoid_of(y, a));
    case ScalarOp::kErf:
      LEVIN_LOOP(erf_of(y, a));
    case ScalarOp::kEq:
      LEVIN_COMPARE(==);
    case ScalarOp::kNe:
      LEVIN_COMPARE(!=);
    case ScalarOp::kLt:
      LEVIN_COMPARE(<);
    case ScalarOp::kLe:
      LEVIN_COMPARE(<=);
    case ScalarOp::kGt:
      LEVIN_COMPARE(>);
    case ScalarOp::kGe:
      LEVIN_COMPARE(>=);
    case ScalarOp::kWhere:
      for (int64_t i = 0; i < n; i += kLanes) {
        Ints mask;
        Floats b, c;
        load(mask, in.a, i);
        load(b, in.b, i);
        load(c, in.c, i);
        const Floats y = mask != 0 ? b : c;
        save(in.out, i, y);
      }
      return true;
    // clang-format off
    case ScalarOp::kLoad: case ScalarOp::kNumber: case ScalarOp::kIndex: case ScalarOp::kCast:
    case ScalarOp::kFloorDiv: case ScalarOp::kTruncDiv: case ScalarOp::kRemainder: case ScalarOp::kFmod:
    case ScalarOp::kPow: case ScalarOp::kAtan2: case ScalarOp::kSign: case ScalarOp::kExpm1:
    case ScalarOp::kExp2: case ScalarOp::kLog: case ScalarOp::kLog1p: case ScalarOp::kLog2:
    case ScalarOp::kLog10: case ScalarOp::kSqrt: case ScalarOp::kRsqrt: case ScalarOp::kSin: case ScalarOp::kCos:
    case ScalarOp::kTan: case ScalarOp::kAtan: case ScalarOp::kFloor: case ScalarOp::kCeil:
    case ScalarOp::kRound: case ScalarOp::kTrunc: case ScalarOp::kIsNan: case ScalarOp::kNot:
    case ScalarOp::kAnd: case ScalarOp::kOr: case ScalarOp::kXor: case ScalarOp::kRowSum:
    case ScalarOp::kRowMax: case ScalarOp::kRowMin: case ScalarOp::kRowProd: case ScalarOp::kColumnSum:
      // clang-format on
      return false;
  }
  return {};
}

LEVIN_INLINE void round_all_body(void* out, const Operand& from, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Floats x, y;
    load(x, from, i);
    round_bfloat16(y, x);
    save(out, i, y);
  }
}

LEVIN_INLINE double reduce_floats_body(ScalarOp op, const float* x, int64_t n) {
  if (op == ScalarOp::kRowMax || op == ScalarOp::kRowMin) {
    float best = x[0];
    for (int64_t i = 1; i < n; ++i) best = least_or_most(op == ScalarOp::kRowMax, best, x[i]);
    return best;
  }
  if (op == ScalarOp::kRowProd) {
    double product = 1;
    for (int64_t i = 0; i < n; ++i) product *= x[i];
    return product;
  }
  constexpr int kSums = 16;
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums)
    for (int k = 0; k < kSums; ++k) sums[k] += x[i + k];
  double sum = 0;
  for (; i < n; ++i) sum += x[i];
  for (const double part : sums) sum += part;
  return sum;
}

LEVIN_INLINE void add_floats_body(double* sums, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sums[i] += x[i];
}

LEVIN_INLINE void from_bfloat16_body(float* to, const uint16_t* from, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Shorts narrow;
    std::memcpy(&narrow, from + i, sizeof narrow);
    const Words bits = __builtin_convertvector(narrow, Words) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
  for (; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

LEVIN_INLINE void to_bfloat16_body(uint16_t* to, const float* from, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Floats x, y;
    std::memcpy(&x, from + i, sizeof x);
    round_bfloat16(y, x);
    Words bits;
    std::memcpy(&bits, &y, sizeof bits);
    const Words quiet = bits | 0x400000u;  // what is NaN stays NaN without its low bits
    const Ints is_nan = y != y;
    bits = is_nan ? quiet : bits;
    const Shorts narrow = __builtin_convertvector(bits >> 16, Shorts);
    std::memcpy(to + i, &narrow, sizeof narrow);
  }
  for (; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    to[i] = from[i] != from[i] ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}

/// What the processor has.
enum class Level : uint8_t { kPlain, kAvx2, kAvx512 };

#ifdef __x86_64__
Level level() {
  static const Level level = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                                 ? Level::kAvx512
                             : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? Level::kAvx2
                                                                                               : Level::kPlain;
  return level;
}
#define LEVIN_VERSIONS(Result, name, parameters, arguments)                                                \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))) Result name##_avx512 parameters { \
    return name##_body arguments;                                                                          \
  }                                                                                                        \
  __attribute__((target("avx2,fma"))) Result name##_avx2 parameters {                                      \
    return name##_body arguments;                                                                          \
  }                                                                                                        \
  Result name##_best parameters {                                                                          \
    if (level() == Level::kAvx512) return name##_avx512 arguments;                                         \
    if (level() == Level::kAvx2) return name##_avx2 arguments;                                             \
    return name##_body arguments;                                                                          \
  }
#else
#define LEVIN_VERSIONS(Result, name, parameters, arguments) \
  Result name##_best parameters {                           \
    return name##_body arguments;                           \
  }
#endif

LEVIN_VERSIONS(bool, run_floats, (const Instruction& in, int64_t n), (in, n))
LEVIN_VERSIONS(void, round_all, (void* out, const Operand& from, int64_t n), (out, from, n))
LEVIN_VERSIONS(double, reduce_floats, (ScalarOp op, const float* x, int64_t n), (op, x, n))
LEVIN_VERSIONS(void, add_floats, (double* sums, const float* x, int64_t n), (sums, x, n))
LEVIN_VERSIONS(void, from_bfloat16, (float* to, const uint16_t* from, int64_t n), (to, from, n))
LEVIN_VERSIONS(void, to_bfloat16, (uint16_t * to, const float* from, int64_t n), (to, from, n))

}  // namespace

void run_instruction(const Instruction& in, int64_t n) {
  n = (n + kLanes - 1) / kLanes * kLanes;
  if (in.op == ScalarOp::kCast) {
    if (in.operand == Number::kFloat && in.dtype == at::kBFloat16) return round_all_best(in.out, in.a, n);
    switch (in.operand) {
      case Number::kFloat:
        return cast_from<float>(in, n);
      case Number::kDouble:
        return cast_from<double>(in, n);
      case Number::kInt:
        return cast_from<int64_t>(in, n);
      case Number::kBool:
        return cast_from<int32_t>(in, n);
    }
  }
  const auto number = in.op == ScalarOp::kWhere ? in.number : in.operand;
  switch (number) {
    case Number::kFloat:
      if (!run_floats_best(in, n)) run_singly<float>(in, n);
      return;
    case Number::kDouble:
      return run_singly<double>(in, n);
    case Number::kInt:
      return run_singly<int64_t>(in, n);
    case Number::kBool:
      return run_bools(in, n);
  }
}

double reduce_floats(ScalarOp op, const float* x, int64_t n) {
  return reduce_floats_best(op, x, n);
}
void add_floats(double* sums, const float* x, int64_t n) {
  add_floats_best(sums, x, n);
}
void from_bfloat16(float* to, const uint16_t* from, int64_t n) {
  from_bfloat16_best(to, from, n);
}
void to_bfloat16(uint16_t* to, const float* from, int64_t n) {
  to_bfloat16_best(to, from, n);
}

}  // namespace levin::compile::detail
