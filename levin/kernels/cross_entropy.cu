#include <cfloat>
#include <cmath>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "levin/kernels/cross_entropy_launch.h"
#include "levin/kernels/numbers.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kWarp = 32;
constexpr float kLog2E = 1.4426950408889634f;

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) LogitPack {
  T values[kWidth];
};

template <class T, int kWidth>
__device__ void load(const T* from, float (&out)[kWidth]) {
  const auto pack = *reinterpret_cast<const LogitPack<T, kWidth>*>(from);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) out[k] = widened(pack.values[k]);
}
template <class T, int kWidth>
__device__ void store(T* to, const float (&in)[kWidth]) {
  LogitPack<T, kWidth> pack;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) assign(pack.values[k], in[k]);
  *reinterpret_cast<LogitPack<T, kWidth>*>(to) = pack;
}

/// The largest of some logits, and the sum of exp(logit - largest).
struct Softmax {
  float top = -FLT_MAX;  // no infinity: the difference of two would be NaN
  float sum = 0;
};
__device__ Softmax joined(const Softmax& a, const Softmax& b) {
  const float top = fmaxf(a.top, b.top);
  return {top, a.sum * exp2f((a.top - top) * kLog2E) + b.sum * exp2f((b.top - top) * kLog2E)};
}
__device__ Softmax over_warp(Softmax mine) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    const Softmax other{__shfl_xor_sync(0xffffffffu, mine.top, lane), __shfl_xor_sync(0xffffffffu, mine.sum, lane)};
    mine = joined(mine, other);
  }
  return mine;
}

/// One block of threads for each row. The second reading of a row goes backward, so that it begins with what the caches
/// still have.
template <class T, int kWidth, int kThreads, bool kGradient>
__global__ void __launch_bounds__(kThreads, 2048 / kThreads) cross_entropy_kernel(const CrossEntropyLaunch launch) {
  constexpr int kStep = kThreads * kWidth, kWarps = kThreads / kWarp;
  __shared__ float tops[kWarps], sums[kWarps];
  const int64_t row = blockIdx.x;
  T* logits = static_cast<T*>(launch.logits) + row * launch.stride;
  const int64_t target = launch.targets[row];
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  if (target == launch.ignore_index) {
    const float zeros[kWidth] = {};
    if (kGradient)
      for (int at = first; at < launch.columns; at += kStep) store<T, kWidth>(logits + at, zeros);
    if (threadIdx.x == 0) launch.losses[row] = 0;
    return;
  }

  Softmax mine;
  for (int at = first; at < launch.classes; at += kStep) {
    float x[kWidth];
    load<T, kWidth>(logits + at, x);
    if (kWidth > 1 && at + kWidth > launch.classes) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        if (at + k >= launch.classes) x[k] = -INFINITY;
    }
    float most = x[0];
#pragma unroll
    for (int k = 1; k < kWidth; ++k) most = fmaxf(most, x[k]);
    if (most > mine.top) {
      mine.sum *= exp2f((mine.top - most) * kLog2E);
      mine.top = most;
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) mine.sum += exp2f((x[k] - mine.top) * kLog2E);
  }
  const bool is_class = target >= 0 && target < launch.classes;
  // Read before the barrier: nobody has written yet.
  const float picked = threadIdx.x == 0 && is_class ? widened(logits[target]) : NAN;
  mine = over_warp(mine);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  if (lane == 0) tops[warp] = mine.top, sums[warp] = mine.sum;
  __syncthreads();
  const Softmax all = over_warp(lane < kWarps ? Softmax{tops[lane], sums[lane]} : Softmax{});
  if (threadIdx.x == 0) launch.losses[row] = logf(all.sum) + (all.top - picked);
  if (!kGradient || first >= launch.columns) return;

  const float scale = is_class ? (launch.scale != nullptr ? *launch.scale : 1.0f) : NAN;
  const float factor = scale / all.sum;
  const int hit = is_class ? static_cast<int>(target) : -1;
  for (int at = first + (launch.columns - 1 - first) / kStep * kStep; at >= 0; at -= kStep) {
    float x[kWidth];
    load<T, kWidth>(logits + at, x);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      x[k] = at + k < launch.classes ? exp2f((x[k] - all.top) * kLog2E) * factor : 0.0f;
      if (at + k == hit) x[k] -= scale;
    }
    store<T, kWidth>(logits + at, x);
  }
}

template <class T, int kWidth, int kThreads>
void launch_typed(const CrossEntropyLaunch& launch, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(launch.rows);
  if (launch.gradient)
    cross_entropy_kernel<T, kWidth, kThreads, true><<<blocks, kThreads, 0, stream>>>(launch);
  else
    cross_entropy_kernel<T, kWidth, kThreads, false><<<blocks, kThreads, 0, stream>>>(launch);
}

template <class T, int kWidth>
void launch_wide(const CrossEntropyLaunch& launch, cudaStream_t stream) {
  constexpr int kMany = 1024, kFew = 128;
  if (launch.columns / kWidth >= 2 * kMany)
    launch_typed<T, kWidth, kMany>(launch, stream);
  else
    launch_typed<T, kWidth, kFew>(launch, stream);
}

template <class T>
void launch_rows(const CrossEntropyLaunch& launch, cudaStream_t stream) {
  constexpr int kWidth = 16 / sizeof(T);
  const bool packs = launch.stride % kWidth == 0 && launch.columns % kWidth == 0 &&
                     reinterpret_cast<uintptr_t>(launch.logits) % 16 == 0;
  if (packs)
    launch_wide<T, kWidth>(launch, stream);
  else
    launch_wide<T, 1>(launch, stream);
}

}  // namespace

int launch_cross_entropy(const CrossEntropyLaunch& launch, CUstream_st* stream) {
  switch (launch.type) {
    case LogitType::kFloat:
      launch_rows<float>(launch, stream);
      break;
    case LogitType::kHalf:
      launch_rows<__half>(launch, stream);
      break;
    case LogitType::kBFloat16:
      launch_rows<__nv_bfloat16>(launch, stream);
      break;
  }
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
