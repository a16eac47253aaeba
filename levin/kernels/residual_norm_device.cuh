#pragma once

#include "levin/kernels/packs.cuh"
#include "levin/kernels/residual_norm_launch.h"

namespace levin::kernels::detail {

/// The factors of dropout. An element's depends on its index alone, so that backward finds the same one however it
/// divides the work.
template <class A>
struct DropoutFactors {
  uint64_t seed = 0, counter = 0;
  uint32_t dropped_below = 0;
  A kept = 1;

  __device__ __forceinline__ A factor(uint32_t number) const { return number < dropped_below ? A(0) : kept; }

  /// Of N neighbours from an index that is a multiple of N.
  template <int N>
  __device__ __forceinline__ void factors(int64_t index, A* out) const {
    if constexpr (N % 4 == 0) {
#pragma unroll
      for (int k = 0; k < N; k += 4) {
        const uint4 numbers = philox(seed, counter, static_cast<uint64_t>(index + k) / 4);
        out[k] = factor(numbers.x);
        out[k + 1] = factor(numbers.y);
        out[k + 2] = factor(numbers.z);
        out[k + 3] = factor(numbers.w);
      }
    } else {
      static_assert(N == 1 || N == 2);
      const uint4 numbers = philox(seed, counter, static_cast<uint64_t>(index) / 4);
      const bool late = (index & 2) != 0;
      const uint32_t even = late ? numbers.z : numbers.x, odd = late ? numbers.w : numbers.y;
      out[0] = factor(N == 1 && (index & 1) != 0 ? odd : even);
      if constexpr (N == 2) out[1] = factor(odd);
    }
  }
};

/// Forward leaves a note of its numbers for backward.
template <class A>
__device__ __forceinline__ DropoutFactors<A> dropout_factors(const NormDropout& dropout, bool backward) {
  DropoutFactors<A> factors;
  factors.dropped_below = dropout.dropped_below;
  factors.kept = static_cast<A>(dropout.kept);
  uint64_t offset = dropout.offset;
  if (backward) {
    factors.seed = static_cast<uint64_t>(dropout.used[0]);
    offset = static_cast<uint64_t>(dropout.used[1]);
  } else if (dropout.seed_pointer != nullptr) {
    factors.seed = static_cast<uint64_t>(*dropout.seed_pointer);
    offset += static_cast<uint64_t>(*dropout.offset_pointer);
  } else {
    factors.seed = dropout.seed;
  }
  factors.counter = offset / 4;  // torch counts numbers, Philox calls that give four
  if (!backward && blockIdx.x == 0 && threadIdx.x == 0) {
    dropout.used[0] = static_cast<int64_t>(factors.seed);
    dropout.used[1] = static_cast<int64_t>(offset);
  }
  return factors;
}

__device__ __forceinline__ float inverse_root(float value) {
  return rsqrtf(value);
}
__device__ __forceinline__ double inverse_root(double value) {
  return 1 / sqrt(value);
}

template <class T>
struct NumberOf {
  using type = T;
};

/// Calls f with the types of stream, branch and output; false where there is no kernel for them.
template <class F>
bool with_norm_types(NumberType stream, NumberType branch, NumberType output, F&& f) {
  if (!norm_knows(stream, branch, output)) return false;
  constexpr NumberOf<float> wide;
  constexpr NumberOf<__half> half;
  constexpr NumberOf<__nv_bfloat16> bfloat;
  switch (stream) {
    case NumberType::kDouble:
      f(NumberOf<double>(), NumberOf<double>(), NumberOf<double>());
      return true;
    case NumberType::kHalf:
      f(half, half, half);
      return true;
    case NumberType::kBFloat16:
      f(bfloat, bfloat, bfloat);
      return true;
    default:
      break;
  }
  if (output == NumberType::kFloat) {
    if (branch == NumberType::kHalf)
      f(wide, half, wide);
    else if (branch == NumberType::kBFloat16)
      f(wide, bfloat, wide);
    else
      f(wide, wide, wide);
  } else if (output == NumberType::kHalf) {
    if (branch == NumberType::kHalf)
      f(wide, half, half);
    else
      f(wide, wide, half);
  } else {
    if (branch == NumberType::kBFloat16)
      f(wide, bfloat, bfloat);
    else
      f(wide, wide, bfloat);
  }
  return true;
}

}  // namespace levin::kernels::detail
