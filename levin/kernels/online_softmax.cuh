#pragma once

#include <cfloat>

#include <cuda_runtime.h>

#include "levin/kernels/numbers.cuh"

/// The softmax of a row in one reading.
namespace levin::kernels::detail {

constexpr float kLog2E = 1.4426950408889634f;

/// The largest of some logits, and the sum of exp(logit - largest).
struct Softmax {
  float top = -FLT_MAX;  // no infinity: the difference of two would be NaN
  float sum = 0;

  template <int kWidth>
  __device__ __forceinline__ void take(const float (&x)[kWidth]) {
    float most = x[0];
#pragma unroll
    for (int k = 1; k < kWidth; ++k) most = fmaxf(most, x[k]);
    if (most > top) {
      sum *= power_of_two((top - most) * kLog2E);
      top = most;
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum += power_of_two((x[k] - top) * kLog2E);
  }
};

__device__ __forceinline__ Softmax joined(const Softmax& a, const Softmax& b) {
  const float top = fmaxf(a.top, b.top);
  // Rounded in one way, whatever kernel this is a part of.
  const float of_b = __fmul_rn(b.sum, power_of_two((b.top - top) * kLog2E));
  return {top, __fmaf_rn(a.sum, power_of_two((a.top - top) * kLog2E), of_b)};
}

__device__ __forceinline__ Softmax over_warp(Softmax mine) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    const Softmax other{__shfl_xor_sync(0xffffffffu, mine.top, lane), __shfl_xor_sync(0xffffffffu, mine.sum, lane)};
    mine = joined(mine, other);
  }
  return mine;
}

}  // namespace levin::kernels::detail
