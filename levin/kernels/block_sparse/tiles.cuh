#pragma once

#include <cstdint>

#include "levin/kernels/async_copy.cuh"
#include "levin/kernels/block_sparse/attention_launch.h"
#include "levin/kernels/numbers.cuh"

/// Tiles of 64 by 64 numbers of 16 bits, and products of them by tensor cores.
namespace levin::kernels::detail {

constexpr int kTileThreads = 128;  // four warps, each has 16 rows of a tile
constexpr int kTileBytes = kSparseBlock * kSparseHead * 2;
constexpr float kPaddingPenalty = -10000.0F;  // BigBird's own: what padding adds to a score

/// Where 16 bytes of a tile are: `pack` of a row is moved about, so that eight rows of one pack are in all banks.
__device__ __forceinline__ uint32_t tile_place(int row, int pack) {
  return static_cast<uint32_t>(row * (kSparseHead * 2) + ((pack ^ (row & 7)) << 4));
}

/// Begins to copy 64 rows; `stride` is in numbers.
template <class T>
__device__ __forceinline__ void begin_tile(char* tile, const T* from, int64_t stride) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int item = static_cast<int>(threadIdx.x) + i * kTileThreads;
    const int row = item >> 3, pack = item & 7;
    begin_copy(tile + tile_place(row, pack), from + row * stride + pack * 8);
  }
}

struct Fragment {
  uint32_t r[4];
};

template <bool kTransposed>
__device__ __forceinline__ Fragment load_matrices(const char* tile, int row, int pack) {
  const auto place = static_cast<uint32_t>(__cvta_generic_to_shared(tile)) + tile_place(row, pack);
  Fragment f;
  if (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
                 : "r"(place)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
                 : "r"(place)
                 : "memory");
  return f;
}

__device__ __forceinline__ int lane_id() {
  return static_cast<int>(threadIdx.x) & 31;
}

/// The left operand: 16 rows from `row` on, columns 16 * step to 16 * step + 15.
__device__ __forceinline__ Fragment left_of(const char* tile, int row, int step) {
  return load_matrices<false>(tile, row + (lane_id() & 15), 2 * step + (lane_id() >> 4));
}

/// The right operand for two groups of eight results (16 * pair to 16 * pair + 15), which are rows of the tile; its
/// columns are summed over. r[0], r[1] are of the first group.
__device__ __forceinline__ Fragment right_of_rows(const char* tile, int pair, int step) {
  const int lane = lane_id();
  return load_matrices<false>(tile, 16 * pair + (lane & 7) + ((lane >> 4) << 3), 2 * step + ((lane >> 3) & 1));
}

/// The same where results are columns of the tile, and its rows are summed over.
__device__ __forceinline__ Fragment right_of_columns(const char* tile, int pair, int step) {
  return load_matrices<true>(tile, 16 * step + (lane_id() & 15), 2 * pair + (lane_id() >> 4));
}

template <class T>
__device__ __forceinline__ void multiply_add(float (&sum)[4], const Fragment& a, uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply_add<__nv_bfloat16>(float (&sum)[4], const Fragment& a, uint32_t b0,
                                                            uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply_add<__half>(float (&sum)[4], const Fragment& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

/// 16 rows by 64 columns: [group of eight columns][what a lane has of it]. Numbers 0 and 1 are of row lane / 4, columns
/// 2 * (lane % 4) and the next; 2 and 3 of the row eight below.
using Rows16 = float[8][4];

__device__ __forceinline__ void clear(Rows16& x) {
#pragma unroll
  for (int g = 0; g < 8; ++g)
#pragma unroll
    for (int i = 0; i < 4; ++i) x[g][i] = 0;
}

/// sum += left times the transposed tile.
template <class T>
__device__ __forceinline__ void add_product_of_rows(Rows16& sum, const Fragment (&left)[4], const char* tile) {
#pragma unroll
  for (int step = 0; step < 4; ++step)
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const Fragment b = right_of_rows(tile, pair, step);
      multiply_add<T>(sum[2 * pair], left[step], b.r[0], b.r[1]);
      multiply_add<T>(sum[2 * pair + 1], left[step], b.r[2], b.r[3]);
    }
}

/// sum += left (rounded to T) times the tile.
template <class T>
__device__ __forceinline__ void add_product_of_columns(Rows16& sum, const Rows16& left, const char* tile) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    Fragment a;
    a.r[0] = packed_pair<T>(left[2 * step][0], left[2 * step][1]);
    a.r[1] = packed_pair<T>(left[2 * step][2], left[2 * step][3]);
    a.r[2] = packed_pair<T>(left[2 * step + 1][0], left[2 * step + 1][1]);
    a.r[3] = packed_pair<T>(left[2 * step + 1][2], left[2 * step + 1][3]);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const Fragment b = right_of_columns(tile, pair, step);
      multiply_add<T>(sum[2 * pair], a, b.r[0], b.r[1]);
      multiply_add<T>(sum[2 * pair + 1], a, b.r[2], b.r[3]);
    }
  }
}

/// Rows `row` and `row` + 8 of a matrix whose rows are `stride` numbers apart, each times a factor.
template <class T>
__device__ __forceinline__ void store_rows(T* to, int64_t stride, int row, const Rows16& x, float first, float second) {
  const int column = 2 * (lane_id() & 3);
#pragma unroll
  for (int g = 0; g < 8; ++g) {
    *reinterpret_cast<uint32_t*>(to + row * stride + 8 * g + column) = packed_pair<T>(x[g][0] * first, x[g][1] * first);
    *reinterpret_cast<uint32_t*>(to + (row + 8) * stride + 8 * g + column) =
        packed_pair<T>(x[g][2] * second, x[g][3] * second);
  }
}

/// What the blocks of a grid (batch * heads, blocks) are: the first and the last block of tokens have the most work, so
/// they begin first.
struct SparsePlace {
  int sample, head, block;
};

__device__ __forceinline__ SparsePlace sparse_place(const BlockSparseLaunch& launch) {
  const int order = static_cast<int>(blockIdx.y), x = static_cast<int>(blockIdx.x);
  return {x / launch.heads, x % launch.heads, order == 0 ? 0 : order == 1 ? launch.blocks - 1 : order - 1};
}

/// The blocks of keys that a block of queries sees, or of queries that see a block of keys.
struct SparseList {
  const int32_t* listed;
  int count;  // with the ends
  int last;   // of all blocks
  bool all;
  bool with_ends;  // before those that are listed come the first and the last block

  __device__ __forceinline__ int operator[](int i) const {
    if (all) return i;
    if (!with_ends) return listed[i];
    return i == 0 ? 0 : i == 1 ? last : listed[i - 2];
  }
};

__device__ __forceinline__ SparseList keys_of(const BlockSparseLaunch& launch, const SparsePlace& place) {
  const int last = launch.blocks - 1;
  if (place.block == 0 || place.block == last) return {nullptr, launch.blocks, last, true, false};
  const int32_t* listed =
      launch.seen + (static_cast<int64_t>(place.head) * (launch.blocks - 2) + place.block - 1) * launch.width;
  int count = launch.width;
  while (count > 0 && listed[count - 1] < 0) --count;
  return {listed, count, last, false, false};
}

__device__ __forceinline__ SparseList queries_of(const BlockSparseLaunch& launch, const SparsePlace& place) {
  const int blocks = launch.blocks;
  const int32_t* table = launch.seen_by + static_cast<int64_t>(place.head) * (blocks + 1 + (blocks - 2) * launch.width);
  const int begin = table[place.block], end = table[place.block + 1];
  return {table + blocks + 1 + begin, end - begin + 2, blocks - 1, false, true};
}

/// Part 0, 1 or 2 of the head in qkv or its gradient, from the first token of the sample on.
template <class T>
__device__ __forceinline__ T* part_of(T* qkv, const BlockSparseLaunch& launch, const SparsePlace& place, int part) {
  const int64_t tokens = static_cast<int64_t>(launch.blocks) * kSparseBlock;
  return qkv + (place.sample * tokens * 3 + part) * launch.heads * kSparseHead + place.head * kSparseHead;
}

/// The head in the result or its gradient.
template <class T>
__device__ __forceinline__ T* head_of(T* out, const BlockSparseLaunch& launch, const SparsePlace& place) {
  const int64_t tokens = static_cast<int64_t>(launch.blocks) * kSparseBlock;
  return out + (place.sample * tokens * launch.heads + place.head) * kSparseHead;
}

/// The row of a statistic [batch, heads, tokens].
__device__ __forceinline__ int64_t statistics_of(const BlockSparseLaunch& launch, const SparsePlace& place) {
  return (static_cast<int64_t>(place.sample) * launch.heads + place.head) * launch.blocks * kSparseBlock;
}

}  // namespace levin::kernels::detail
