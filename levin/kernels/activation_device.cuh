#pragma once

#include "levin/kernels/activation_launch.h"
#include "levin/kernels/numbers.cuh"

/// Activation functions and their derivatives, for kernels that compute in registers. T is the dtype in memory.
namespace levin::kernels::detail {

// ---- functions. Of 16-bit numbers the instructions of the special function units are exact enough. Where the clock is
// low, kernels of an activation wait for instructions, not for memory.

__device__ __forceinline__ float exponential(float x) {
  return expf(x);
}
__device__ __forceinline__ double exponential(double x) {
  return exp(x);
}
/// 1 / x; 0 of what is beyond 2^126.
__device__ __forceinline__ float inverse(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
template <class T, class A>
__device__ __forceinline__ A sigmoid(A x) {
  if constexpr (sizeof(T) == 2)
    return inverse(1.0f + power_of_two(x * -1.4426950408889634f));  // e^-x
  else
    return 1 / (1 + exponential(-x));
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
  } else if constexpr (sizeof(T) == 4) {
    return {0.5f * (1 + erff(x * 0.70710678118654752440f)), expf(-0.5f * x * x)};
  } else {
    const float bell = power_of_two(x * (x * -0.72134752044448170368f));
    // Half of Abramowitz and Stegun 7.1.26: off by 0.75e-7 at most, and it shares the bell.
    const float t = inverse(1.0f + 0.3275911f * 0.70710678118654752440f * fabsf(x));
    const float tail =
        t * (0.127414796f + t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f)))) *
        bell;
    return {x < 0 ? tail : 1.0f - tail, bell};
  }
}

constexpr double kTanhScale = 0.79788456080286535588, kTanhCube = 0.044715;  // sqrt(2 / pi)

/// 2 z, where GELU's approximation is x (1 + tanh(z)) / 2: that is x times the sigmoid of 2 z.
template <class A>
__device__ __forceinline__ A twice_tanh_of(A x, A square) {
  return x * (A(2 * kTanhScale) + A(2 * kTanhScale * kTanhCube) * square);
}

template <ActivationKind kind, class T, class A>
__device__ __forceinline__ A activated(A x) {
  if constexpr (kind == ActivationKind::kGelu) {
    return x * normal<T>(x).below;
  } else if constexpr (kind == ActivationKind::kGeluTanh) {
    return x * sigmoid<T>(twice_tanh_of(x, x * x));
  } else if constexpr (kind == ActivationKind::kRelu) {
    return x < 0 ? A(0) : x;
  } else {
    static_assert(kind == ActivationKind::kSilu, "an activation without a function");
    return x * sigmoid<T>(x);
  }
}

template <ActivationKind kind, class T, class A>
__device__ __forceinline__ A derivative(A x) {
  if constexpr (kind == ActivationKind::kGelu) {
    const auto at = normal<T>(x);
    return at.below + x * A(0.39894228040143267794) * at.bell;
  } else if constexpr (kind == ActivationKind::kGeluTanh) {
    const A square = x * x;
    const A s = sigmoid<T>(twice_tanh_of(x, square));
    const A slope = A(2 * kTanhScale) + A(6 * kTanhScale * kTanhCube) * square;
    return s + x * (s - s * s) * slope;
  } else if constexpr (kind == ActivationKind::kRelu) {
    return x <= 0 ? A(0) : A(1);
  } else {
    static_assert(kind == ActivationKind::kSilu, "an activation without a derivative");
    const A s = sigmoid<T>(x);
    return s * (1 + x * (1 - s));
  }
}

}  // namespace levin::kernels::detail
