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

/// Cosines and sines of a position for kDecodeDims dimensions from `column` on; not where kDecodeDims does not divide
/// what is turned.
struct Angles {
  float cosine[kDecodeDims], sine[kDecodeDims];
};

__device__ __forceinline__ bool is_turned(const DecodeLaunch& a, int column) {
  return a.angles && column < 2 * a.half;
}

__device__ __forceinline__ Angles angles_of(const DecodeLaunch& a, int column, int64_t position) {
  Angles of{};
  if (!is_turned(a, column) || a.half % kDecodeDims != 0) return of;
  const float* cosine = a.angles + position * a.half;
  const int angle = column < a.half ? column : column - a.half;
  load_wide<kDecodeDims, float>(cosine, angle, of.cosine);
  load_wide<kDecodeDims, float>(cosine + a.angle_rows * a.half, angle, of.sine);
  return of;
}

/// kDecodeDims numbers of a head from `column` on, and those that they are turned with.
template <class T>
struct Unturned {
  Pack<T, kDecodeDims> own, other;
};

template <class T>
__device__ __forceinline__ Unturned<T> load_unturned(const DecodeLaunch& a, const T* head, int column) {
  const bool has_other = is_turned(a, column) && a.half % kDecodeDims == 0;
  const int other = !has_other ? column : column < a.half ? column + a.half : column - a.half;
  return {load<T, kDecodeDims>(head, column), load<T, kDecodeDims>(head, other)};
}

/// The numbers turned by the angles of a position and rounded as they are kept.
template <class T>
__device__ __forceinline__ void turn(const DecodeLaunch& a, const Unturned<T>& x, const T* head, int column,
                                     int64_t position, const Angles& angles, float* out) {
  unpack<T, kDecodeDims>(x.own, out);
  if (!is_turned(a, column)) return;
  if (a.half % kDecodeDims == 0) {
    float other[kDecodeDims];
    unpack<T, kDecodeDims>(x.other, other);
#pragma unroll
    for (int d = 0; d < kDecodeDims; ++d) {
      const float turned = other[d] * angles.sine[d];
      out[d] = out[d] * angles.cosine[d] + (column < a.half ? -turned : turned);
    }
  } else {
    const float* cosine = a.angles + position * a.half;
    const float* sine = cosine + a.angle_rows * a.half;
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

template <class T>
__device__ __forceinline__ void load_turned(const DecodeLaunch& a, const T* head, int column, int64_t position,
                                            float* out) {
  turn(a, load_unturned(a, head, column), head, column, position, angles_of(a, column, position), out);
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
