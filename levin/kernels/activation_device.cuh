#pragma once

#include "levin/kernels/activation_launch.h"

/// Activation functions and their derivatives, for kernels that compute in registers. T is the dtype in memory.
namespace levin::kernels::detail {

// ---- functions. Of 16-bit numbers the instructions of the special function units are exact enough.

template <class T>
__device__ __forceinline__ float exponential(float x) {
  return sizeof(T) == 2 ? __expf(x) : expf(x);
}
template <class T>
__device__ __forceinline__ double exponential(double x) {
  return exp(x);
}
template <class T>
__device__ __forceinline__ float quotient(float a, float b) {
  return sizeof(T) == 2 ? __fdividef(a, b) : a / b;
}
template <class T>
__device__ __forceinline__ double quotient(double a, double b) {
  return a / b;
}
/// __fdividef gives 0 for divisors beyond 2^126, and 1 + e^x may be one: what is divided by then is as good as
/// infinite.
template <class T, class A>
__device__ __forceinline__ A sigmoid(A x) {
  return quotient<T>(A(1), A(1) + exponential<T>(-x));
}

/// The normal distribution up to x, and e^(-x^2 / 2).
template <class A>
struct Normal {
  A below, bell;
};

template <class T, class A>
__device__ __forceinline__ Normal<A> normal(A x) {
  if constexpr (sizeof(T) == 8) {
    return {0.5 * (1 + erf(x * 0.70710678118654752440)), exp(-0.5 * x * x)};
  } else {
    const float bell = exponential<T>(-0.5f * x * x);
    if constexpr (sizeof(T) == 4) return {0.5f * (1 + erff(x * 0.70710678118654752440f)), bell};
    // Abramowitz and Stegun 7.1.26: off by 1.5e-7 at most, and it shares the bell.
    const float t = __fdividef(1.0f, 1.0f + 0.3275911f * 0.70710678118654752440f * fabsf(x));
    const float series =
        t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float tail = 0.5f * series * bell;
    return {x < 0 ? tail : 1.0f - tail, bell};
  }
}

constexpr double kTanhScale = 0.79788456080286535588, kTanhCube = 0.044715;  // sqrt(2 / pi)

template <ActivationKind kind, class T, class A>
__device__ __forceinline__ A activated(A x) {
  if constexpr (kind == ActivationKind::kGelu) {
    return x * normal<T>(x).below;
  } else if constexpr (kind == ActivationKind::kGeluTanh) {
    const A inner = A(2 * kTanhScale) * (x + A(kTanhCube) * x * x * x);
    return x * sigmoid<T>(inner);  // (1 + tanh(z)) / 2 is the sigmoid of 2 z
  } else if constexpr (kind == ActivationKind::kRelu) {
    return x < 0 ? A(0) : x;
  } else {
    return x * sigmoid<T>(x);
  }
}

template <ActivationKind kind, class T, class A>
__device__ __forceinline__ A derivative(A x) {
  if constexpr (kind == ActivationKind::kGelu) {
    const auto at = normal<T>(x);
    return at.below + x * A(0.39894228040143267794) * at.bell;
  } else if constexpr (kind == ActivationKind::kGeluTanh) {
    const A inner = A(2 * kTanhScale) * (x + A(kTanhCube) * x * x * x);
    const A slope = A(2 * kTanhScale) * (1 + A(3 * kTanhCube) * x * x);
    const A s = sigmoid<T>(inner);
    return s + x * s * (1 - s) * slope;
  } else if constexpr (kind == ActivationKind::kRelu) {
    return x <= 0 ? A(0) : A(1);
  } else {
    const A s = sigmoid<T>(x);
    return s * (1 + x * (1 - s));
  }
}

}  // namespace levin::kernels::detail
