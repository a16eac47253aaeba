#include <algorithm>
#include <cmath>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "levin/kernels/cross_entropy/cross_entropy_launch.h"
#include "levin/kernels/number_switch.cuh"
#include "levin/kernels/numbers.cuh"
#include "levin/kernels/online_softmax.cuh"
#include "levin/kernels/packs.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kWarp = 32;

/// Logits past the classes count for nothing.
template <int kWidth>
__device__ __forceinline__ void cut(float (&x)[kWidth], int at, int classes) {
  if (at + kWidth <= classes) return;
#pragma unroll
  for (int k = 0; k < kWidth; ++k)
    if (at + k >= classes) x[k] = -INFINITY;
}

/// Logits to their gradients: scale * (softmax - 1 at the target).
struct LogitGradient {
  float top, factor, scale;
  int hit, classes;

  template <int kWidth>
  __device__ __forceinline__ void apply(float (&x)[kWidth], int at) const {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) x[k] = power_of_two((x[k] - top) * kLog2E) * factor;
    if (at + kWidth > classes) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        if (at + k >= classes) x[k] = 0;
    }
    if (static_cast<unsigned>(hit - at) < static_cast<unsigned>(kWidth)) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        if (at + k == hit) x[k] -= scale;
    }
  }
};

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
      for (int at = first; at < launch.columns; at += kStep) store_packed<T, kWidth>(logits, at, zeros);
    if (threadIdx.x == 0) launch.losses[row] = 0;
    return;
  }

  Softmax mine;
  for (int at = first; at < launch.classes; at += kStep) {
    float x[kWidth];
    load_wide<kWidth, T>(logits, at, x);
    cut(x, at, launch.classes);
    mine.take(x);
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
  const LogitGradient gradient{all.top, scale / all.sum, scale, is_class ? static_cast<int>(target) : -1,
                               launch.classes};
  for (int at = first + (launch.columns - 1 - first) / kStep * kStep; at >= 0; at -= kStep) {
    float x[kWidth];
    load_wide<kWidth, T>(logits, at, x);
    gradient.apply(x, at);
    store_packed<T, kWidth>(logits, at, x);
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
  const bool packs = launch.stride % kWidth == 0 && launch.columns % kWidth == 0 && is_pack_aligned(launch.logits);
  if (packs)
    launch_wide<T, kWidth>(launch, stream);
  else
    launch_wide<T, 1>(launch, stream);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(256) scale_kernel(const ScaleLaunch launch) {
  const float factor = widened(*static_cast<const T*>(launch.factor));
  if (factor == 1) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kWidth;
  for (int64_t at = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth; at < launch.count;
       at += step) {
    float x[kWidth];
    load_wide<kWidth, T>(launch.x, at, x);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) x[k] *= factor;
    store_packed<T, kWidth>(launch.x, at, x);
  }
}

/// A warp for each row.
template <class T>
__global__ void __launch_bounds__(256) scale_rows_kernel(const ScaleRowsLaunch launch) {
  constexpr int kWidth = 4, kWarps = 256 / kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= launch.rows) return;
  const float factor = launch.factors[row];
  const float* from = launch.x + row * launch.packs * kWidth;
  T* to = static_cast<T*>(launch.out) + row * launch.packs * kWidth;
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x) % kWarp; at < launch.packs; at += kWarp) {
    float x[kWidth];
    load_wide<kWidth, float>(from, at * kWidth, x);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) x[k] *= factor;
    store_packed<T, kWidth>(to, at * kWidth, x);
  }
}

}  // namespace

int launch_scale_rows(const ScaleRowsLaunch& launch, CUstream_st* stream) {
  return launch_for_number(launch.type, [&](auto number) {
    const auto blocks = static_cast<unsigned>((launch.rows + 7) / 8);
    scale_rows_kernel<typename decltype(number)::type><<<blocks, 256, 0, stream>>>(launch);
  });
}

int launch_scale(const ScaleLaunch& launch, CUstream_st* stream) {
  return launch_for_number(launch.type, [&](auto number) {
    using T = typename decltype(number)::type;
    constexpr int kWidth = 16 / sizeof(T), kThreads = 256, kResident = 8;
    const bool packs = launch.count % kWidth == 0 && is_pack_aligned(launch.x);
    const auto kernel = packs ? scale_kernel<T, kWidth> : scale_kernel<T, 1>;
    const int64_t items = packs ? launch.count / kWidth : launch.count;
    const auto blocks = std::min<int64_t>((items + kThreads - 1) / kThreads, int64_t{kResident} * launch.processors);
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(launch);
  });
}

int launch_cross_entropy(const CrossEntropyLaunch& launch, CUstream_st* stream) {
  return launch_for_number(launch.type,
                           [&](auto number) { launch_rows<typename decltype(number)::type>(launch, stream); });
}

}  // namespace levin::kernels::detail
