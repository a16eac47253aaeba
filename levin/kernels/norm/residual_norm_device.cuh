#pragma once

#include "levin/kernels/async_copy.cuh"
#include "levin/kernels/norm/residual_norm_launch.h"
#include "levin/kernels/number_switch.cuh"
#include "levin/kernels/packs.cuh"

namespace levin::kernels::detail {

/// The threads that share a row: a warp, or some warps of a block that meet at a barrier of their own.
struct RowGroup {
  int warps, lanes, t, group;

  __device__ __forceinline__ explicit RowGroup(int warps_of_row)
      : warps(warps_of_row),
        lanes(32 * warps_of_row),
        t(static_cast<int>(threadIdx.x) % lanes),
        group(static_cast<int>(threadIdx.x) / lanes) {}

  __device__ __forceinline__ void meet() const {
    if (warps == 1)
      __syncwarp();
    else
      asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(lanes) : "memory");
  }

  /// Begins to copy bytes of a row, a multiple of 16.
  __device__ __forceinline__ void copy(unsigned char* to, const void* from, int bytes) const {
    for (int at = t * 16; at < bytes; at += lanes * 16) begin_copy(to + at, static_cast<const char*>(from) + at);
  }

  /// The sum over all threads. `slots` has a place for each warp of the block, and is not used again before the group
  /// has met once more.
  template <class A>
  __device__ __forceinline__ A sum(A value, A* slots) const {
    value = warp_sum(value);
    if (warps == 1) return value;
    if (t % 32 == 0) slots[threadIdx.x / 32] = value;
    meet();
    value = 0;
    for (int warp = group * warps; warp < (group + 1) * warps; ++warp) value += slots[warp];
    return value;
  }
};

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
    case NumberType::kNone:
    case NumberType::kFloat:
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
