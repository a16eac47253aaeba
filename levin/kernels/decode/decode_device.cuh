#pragma once

#include <cuda_runtime.h>

#include "levin/kernels/decode/decode_launch.h"
#include "levin/kernels/numbers.cuh"
#include "levin/kernels/packs.cuh"

/// What the kernels of attention over a cache share.
namespace levin::kernels::detail {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kLowest = -INFINITY;

/// Where keys and values of a position of a row lie: a number of heads of `width` numbers.
__device__ __forceinline__ int64_t slot_of(const DecodeLaunch& a, int row, int head, int64_t position) {
  if (!a.blocks) return (static_cast<int64_t>(row) * a.kv_heads + head) * a.capacity + position;
  const int64_t block = a.blocks[row * a.table_width + (position >> a.block_shift)];
  return (block * a.kv_heads + head) * a.capacity + (position & (a.capacity - 1));
}

/// kDecodeDims numbers of a head from `column` on, turned by the angles of a position and rounded as they are kept.
template <class T>
__device__ __forceinline__ void load_turned(const DecodeLaunch& a, const T* head, int column, int64_t position,
                                            float* out) {
  load_wide<kDecodeDims, T>(head, column, out);
  if (!a.angles || column >= 2 * a.half) return;
  const float* cosine = a.angles + position * a.half;
  const float* sine = cosine + a.angle_rows * a.half;
  float other[kDecodeDims], c[kDecodeDims], s[kDecodeDims];
  const bool is_first = column < a.half;
  if (a.half % kDecodeDims == 0) {
    const int angle = is_first ? column : column - a.half;
    load_wide<kDecodeDims, T>(head, is_first ? column + a.half : angle, other);
    load_wide<kDecodeDims, float>(cosine, angle, c);
    load_wide<kDecodeDims, float>(sine, angle, s);
#pragma unroll
    for (int d = 0; d < kDecodeDims; ++d)
      out[d] = is_first ? out[d] * c[d] - other[d] * s[d] : out[d] * c[d] + other[d] * s[d];
  } else {
    for (int d = 0; d < kDecodeDims && column + d < 2 * a.half; ++d) {
      const bool first = column + d < a.half;
      const int angle = first ? column + d : column + d - a.half;
      const float partner = widened(head[first ? angle + a.half : angle]);
      out[d] = out[d] * cosine[angle] + (first ? -partner : partner) * sine[angle];
    }
  }
#pragma unroll
  for (int d = 0; d < kDecodeDims; ++d) out[d] = widened(narrowed<T>(out[d]));
}

__device__ __forceinline__ float finite(float most) {
  return most == kLowest ? 0.0f : most;
}

/// What the warps of a block have seen of `heads` queries from `first` on becomes one: the result, or a part of it.
template <class T, int kWarps, int kHeads, int kWidth, int kThreads>
__device__ __forceinline__ void join_warps(const DecodeLaunch& a, int row, int first, int heads, int split,
                                           const float (&most_of)[kWarps][kHeads],
                                           const float (&sum_of)[kWarps][kHeads],
                                           const float (&mixed_of)[kWarps][kHeads][kWidth]) {
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * a.width; i += kThreads) {
    const int h = i / a.width, d = i % a.width;
    if (h >= heads) break;
    float most = most_of[0][h];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) most = fmaxf(most, most_of[w][h]);
    const float by = finite(most);
    float sum = 0, mixed = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float share = __expf(most_of[w][h] - by);
      sum += sum_of[w][h] * share;
      mixed += mixed_of[w][h][d] * share;
    }
    const int64_t head = static_cast<int64_t>(row) * a.heads + first + h;
    if (a.splits == 1) {
      static_cast<T*>(a.out)[head * a.width + d] = narrowed<T>(mixed / sum);
    } else {
      float* to = a.partial + (head * a.splits + split) * (a.width + 2);
      to[d] = mixed;
      if (d == 0) to[a.width] = most, to[a.width + 1] = sum;
    }
  }
}

}  // namespace levin::kernels::detail
