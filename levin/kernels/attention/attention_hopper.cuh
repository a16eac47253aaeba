#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include <cuda_runtime.h>

#include "levin/kernels/attention/packed_attention_launch.h"
#include "levin/kernels/hopper.cuh"
#include "levin/kernels/numbers.cuh"

/// What the attention kernels of compute capability 9.0 share: heads of 64 numbers in packed tensors, and the results
/// of a warpgroup on their way to memory.
namespace levin::kernels::detail {

inline constexpr int kHeadSize = 64;
constexpr float kLog2e = 1.4426950408889634f;

/// [batch, tokens, heads, 64] of float16 or bfloat16.
struct HeadTensor {
  int batch, tokens, heads;
  bool half;
};
inline HeadTensor tensor_of(const PackedAttentionLaunch& launch) {
  return {launch.batch, launch.tokens, launch.heads, launch.half};
}

struct Sizes {
  int tokens, heads;
  int total;         // heads of all sequences
  unsigned inverse;  // of `heads`, in 2^-32
  float scale;
};

struct Head {
  int head, batch;
};
__device__ __forceinline__ Head head_at(const Sizes& sizes, int index) {
  const int batch = sizes.heads == 1 ? index : static_cast<int>(__umulhi(static_cast<unsigned>(index), sizes.inverse));
  return {index - batch * sizes.heads, batch};
}

/// The first (0) or the second (1) of a thread's two rows of 64 x 64 numbers, times `share`.
__device__ __forceinline__ void scale_row(float (&d)[32], int row, float share) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    d[4 * j + 2 * row] *= share;
    d[4 * j + 2 * row + 1] *= share;
  }
}

/// Queries do not see later keys: their scores become minus infinity. `row`: that of the thread's first row of results;
/// its columns start at 0. kRowsAreKeys: else they are queries.
template <bool kRowsAreKeys, int kCount>
__device__ __forceinline__ void hide_later(float (&s)[kCount], int row, int lane) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = i / 4 * 8 + 2 * (lane & 3) + i % 2, of_row = row + i % 4 / 2 * 8;
    if (kRowsAreKeys ? column < of_row : column > of_row) s[i] = -INFINITY;
  }
}

/// The gradients of two scores, from their weights and from the gradients of these, less the product of the query's
/// result and its gradient: `a` and `b`. In bfloat16 those are rounded before they are multiplied; float16 would
/// overflow.
template <class T>
__device__ __forceinline__ uint32_t gradient_of_scores(uint32_t weights, float a, float b) {
  if constexpr (kIsHalf<T>) {
    const float2 x = unpacked<T>(weights);
    return packed_pair<T>(x.x * a, x.y * b);
  } else {
    uint32_t gradients;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(gradients) : "r"(weights), "r"(packed_pair<T>(a, b)));
    return gradients;
  }
}

/// 64 x 64 numbers, times `scale`, to shared memory. `rows`: how many of them belong to tokens.
template <class T>
__device__ __forceinline__ void stage(uint32_t to, const float (&d)[32], float scale, int warp, int lane, int rows) {
  if (16 * warp >= rows) return;
  const int row = 16 * warp + (lane & 15), part = lane >> 4;
#pragma unroll
  for (int j = 0; j < 8; j += 2)
    store_matrices(to + row * 128 + (((j + part) ^ (row & 7)) << 4),
                   packed_pair<T>(d[4 * j] * scale, d[4 * j + 1] * scale),
                   packed_pair<T>(d[4 * j + 2] * scale, d[4 * j + 3] * scale),
                   packed_pair<T>(d[4 * j + 4] * scale, d[4 * j + 5] * scale),
                   packed_pair<T>(d[4 * j + 6] * scale, d[4 * j + 7] * scale));
}

/// Adds the rows of `d` up that belong to tokens, `rows` of 64. `sums` has 16 columns, j / 2 * 8 + 2 * (lane % 4) + j
/// % 2.
__device__ __forceinline__ void add_rows(float (&sums)[16], const float (&d)[32], int warp, int lane, int rows) {
  const bool first = 16 * warp + lane / 4 < rows, second = 16 * warp + lane / 4 + 8 < rows;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const int at = j / 2 * 4 + j % 2;
    sums[j] += (first ? d[at] : 0.f) + (second ? d[at + 2] : 0.f);
  }
}

/// Of 2 * kHere columns a thread keeps half, and gives the other half to the thread that keeps those.
template <int kHere>
__device__ __forceinline__ void halve_columns(float (&sums)[16], int lane) {
  const bool upper = (lane & 2 * kHere) != 0;
#pragma unroll
  for (int j = 0; j < kHere; ++j) {
    const float a = sums[j], b = sums[kHere + j];
    sums[j] = (upper ? b : a) + __shfl_xor_sync(~0u, upper ? a : b, 2 * kHere);
  }
}
/// Over the eight threads that have the same columns; each of them ends with two of 16, those of column_of.
__device__ __forceinline__ float2 warp_columns(float (&sums)[16], int lane) {
  halve_columns<8>(sums, lane);
  halve_columns<4>(sums, lane);
  halve_columns<2>(sums, lane);
  return {sums[0], sums[1]};
}
__device__ __forceinline__ int column_of(int lane) {
  return 8 * ((lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1)) + 2 * (lane & 3);
}

/// Adds the sums of columns of `d`, times `scale`, to those of column_of.
__device__ __forceinline__ void add_columns(float2& columns, const float (&d)[32], float scale, int warp, int lane,
                                            int rows) {
  float each[16] = {};
  add_rows(each, d, warp, lane, rows);
  const float2 two = warp_columns(each, lane);
  columns = {fmaf(two.x, scale, columns.x), fmaf(two.y, scale, columns.y)};
}

// ---- Launches.

/// Boxes of some rows of a head of [batch, tokens, heads, 64].
inline cudaError_t box_map(CUtensorMap& map, const void* data, const HeadTensor& of, int heads, int rows) {
  const cuuint64_t row = static_cast<cuuint64_t>(heads) * 128, tokens = static_cast<cuuint64_t>(of.tokens);
  return box_map<4>(map, data, of.half,
                    {{64, tokens, static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(of.batch)},
                     {row, 128, row * tokens},
                     {64, static_cast<cuuint32_t>(rows), 1, 1}});
}

inline Sizes sizes_of(const HeadTensor& of) {
  return {of.tokens, of.heads, of.batch * of.heads,
          static_cast<unsigned>((uint64_t{1} << 32) / static_cast<unsigned>(of.heads) + 1),
          1 / std::sqrt(static_cast<float>(kHeadSize))};
}

}  // namespace levin::kernels::detail
