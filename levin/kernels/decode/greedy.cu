#include <climits>
#include <cmath>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "levin/kernels/decode/greedy_launch.h"
#include "levin/kernels/early_start.cuh"
#include "levin/kernels/number_switch.cuh"
#include "levin/kernels/online_softmax.cuh"
#include "levin/kernels/packs.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kGreedyThreads = 512, kGreedyWarps = kGreedyThreads / 32;
constexpr unsigned kAdvanceWarps = 32;

/// The first of the largest scores; NaN is larger than any number.
struct Best {
  float score = -INFINITY;
  int index = INT_MAX;

  /// Scores behind all that it has seen.
  template <int kWidth>
  __device__ __forceinline__ void take(const float (&x)[kWidth], int at) {
    if (index == INT_MAX) index = at;
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      if (!(x[k] <= score) && score == score) score = x[k], index = at + k;
  }
};

__device__ __forceinline__ Best better(const Best& a, const Best& b) {
  const bool a_is_nan = a.score != a.score, b_is_nan = b.score != b.score;
  const bool equal = a_is_nan || b_is_nan ? a_is_nan && b_is_nan : a.score == b.score;
  if (equal) return a.index < b.index ? a : b;
  return a_is_nan || a.score > b.score ? a : b;
}

struct GreedyState {
  Softmax softmax;
  Best best;
};

__device__ __forceinline__ GreedyState over_warp(GreedyState mine) {
  mine.softmax = over_warp(mine.softmax);
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    Best other;
    other.score = __shfl_xor_sync(0xffffffffu, mine.best.score, lane);
    other.index = __shfl_xor_sync(0xffffffffu, mine.best.index, lane);
    mine.best = better(mine.best, other);
  }
  return mine;
}

__device__ __forceinline__ GreedyState state_of(const GreedyPart& part) {
  GreedyState state;
  state.softmax.top = part.top, state.softmax.sum = part.sum;
  state.best.score = part.score, state.best.index = part.index;
  return state;
}
__device__ __forceinline__ GreedyPart part_of(const GreedyState& state) {
  return {state.softmax.top, state.softmax.sum, state.best.score, state.best.index};
}

/// Numbers at `at` and behind; -inf from `end` on.
template <class T, int kWidth>
__device__ __forceinline__ void load_words(const T* row, int at, int end, float (&x)[kWidth]) {
  if (at + kWidth <= end) return load_wide<kWidth, T>(row, at, x);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) x[k] = at + k < end ? widened(row[at + k]) : -INFINITY;
}

/// One block for each part of a row.
template <class T, int kWidth, bool kSame>
__global__ void __launch_bounds__(kGreedyThreads) greedy_parts_kernel(const GreedyLaunch launch) {
  __shared__ GreedyPart slots[kGreedyWarps];
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / launch.parts;
  const int begin = static_cast<int>(blockIdx.x % launch.parts) * launch.part_words;
  const int end = min(begin + launch.part_words, launch.words);
  const T* logits = static_cast<const T*>(launch.logits) + row * launch.logits_stride;
  const T* scores = static_cast<const T*>(launch.scores) + row * launch.scores_stride;
  GreedyState mine;
  for (int at = begin + static_cast<int>(threadIdx.x) * kWidth; at < end; at += kGreedyThreads * kWidth) {
    float x[kWidth];
    load_words<T, kWidth>(logits, at, end, x);
    mine.softmax.take(x);
    if (!kSame) load_words<T, kWidth>(scores, at, end, x);
    mine.best.take(x, at);
  }
  mine = over_warp(mine);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (lane == 0) slots[warp] = part_of(mine);
  __syncthreads();
  if (warp > 0) return;
  mine = over_warp(lane < kGreedyWarps ? state_of(slots[lane]) : GreedyState());
  if (lane == 0) launch.partial[blockIdx.x] = part_of(mine);
}

/// The parts of a row, by one warp.
template <class T>
__device__ __forceinline__ void join_row(const GreedyLaunch& launch, int64_t row, double* found) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto all = over_warp(lane < launch.parts ? state_of(launch.partial[row * launch.parts + lane]) : GreedyState());
  if (lane > 0) return;
  const T* logits = static_cast<const T*>(launch.logits) + row * launch.logits_stride;
  const double logit = widened(logits[all.best.index]);
  launch.ids[row] = all.best.index;
  found[3 * row] = all.best.index;
  found[3 * row + 1] = logit - all.softmax.top - log(static_cast<double>(all.softmax.sum));
  found[3 * row + 2] = all.best.score;
}

/// One warp for each row.
template <class T>
__global__ void __launch_bounds__(32) greedy_join_kernel(const GreedyLaunch launch) {
  let_next_start();
  wait_for_previous();
  join_row<T>(launch, blockIdx.x, launch.found);
}

/// One block: its warps share the rows.
template <class T>
__global__ void __launch_bounds__(kAdvanceWarps * 32) greedy_advance_kernel(const GreedyLaunch launch) {
  let_next_start();
  wait_for_previous();
  const int64_t turn = *launch.turn;
  for (int64_t row = threadIdx.x / 32; row < launch.rows; row += blockDim.x / 32) {
    join_row<T>(launch, row, launch.found + 3 * turn * launch.rows);
    if (threadIdx.x % 32 == 0) ++launch.positions[row];
  }
  __syncthreads();  // all have read the turn
  if (threadIdx.x == 0) *launch.turn = turn + 1 < launch.turns ? turn + 1 : 0;
}

template <class T, int kWidth>
cudaError_t launch_parts(const GreedyLaunch& launch, cudaStream_t stream) {
  const bool same = launch.logits == launch.scores && launch.logits_stride == launch.scores_stride;
  const auto kernel = same ? greedy_parts_kernel<T, kWidth, true> : greedy_parts_kernel<T, kWidth, false>;
  return launch_early(kernel, {static_cast<unsigned>(launch.rows * launch.parts), kGreedyThreads}, stream, launch);
}

template <class T>
cudaError_t launch_typed(const GreedyLaunch& launch, cudaStream_t stream) {
  constexpr int kWidth = 16 / sizeof(T);
  const bool packs = is_pack_aligned(launch.logits) && is_pack_aligned(launch.scores) &&
                     (launch.rows == 1 || (launch.logits_stride % kWidth == 0 && launch.scores_stride % kWidth == 0));
  const auto error = packs ? launch_parts<T, kWidth>(launch, stream) : launch_parts<T, 1>(launch, stream);
  if (error != cudaSuccess) return error;
  if (launch.turn) {
    const auto warps = launch.rows < kAdvanceWarps ? static_cast<unsigned>(launch.rows) : kAdvanceWarps;
    return launch_early(greedy_advance_kernel<T>, {1, 32 * warps}, stream, launch);
  }
  return launch_early(greedy_join_kernel<T>, {static_cast<unsigned>(launch.rows), 32}, stream, launch);
}

}  // namespace

int launch_greedy(const GreedyLaunch& launch, CUstream_st* stream) {
  auto error = cudaErrorInvalidValue;
  with_number(launch.type, [&](auto number) { error = launch_typed<typename decltype(number)::type>(launch, stream); });
  return static_cast<int>(error);
}

}  // namespace levin::kernels::detail
