#pragma once

#include <cuda_runtime.h>

#include "levin/kernels/numbers.cuh"
#include "levin/kernels/quantized/packed_decode.cuh"
#include "levin/kernels/quantized/quantized_launch.h"

/// Tiles of packed matrices in the registers of a warp, and their products with x, for skinny_linear.cu.
namespace levin::kernels::detail {
namespace {

constexpr int kTile = 16;

template <WeightFormat format>
struct Layout;
/// kColumns: of a row of the tile in one chunk, of which a lane loads 16 bytes. kParts: groups of kPackedGroup columns
/// with scales of their own in a chunk; 0 where a row has one scale.
template <>
struct Layout<WeightFormat::kPlain> {
  static constexpr int kColumns = 32, kParts = 0;
};
template <>
struct Layout<WeightFormat::kInt8> {
  static constexpr int kColumns = 64, kParts = 0;
};
template <>
struct Layout<WeightFormat::kFp8> : Layout<WeightFormat::kInt8> {};
template <>
struct Layout<WeightFormat::kInt4> {
  static constexpr int kColumns = 128, kParts = 2;
};
template <>
struct Layout<WeightFormat::kNf4> : Layout<WeightFormat::kInt4> {};

/// The matrix is read once: it should not push x out of the cache.
__device__ __forceinline__ uint4 streamed(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ __forceinline__ void multiply_tile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_tile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                              __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The same without what was there before.
__device__ __forceinline__ void start_tile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}
__device__ __forceinline__ void start_tile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                           __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

/// The lowest nibbles of both halves of a word, less the zero point.
template <class T>
__device__ __forceinline__ uint32_t nibbles(uint32_t word, uint32_t base) {
  uint32_t raised;  // (word & 0x000f000f) | base of numbers, in one instruction: a compiler makes two for two constants
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(raised) : "r"(word), "r"(0x000f000fu), "r"(Pairs<T>::kNibbleBase));
  return Pairs<T>::subtract(raised, base);
}

/// Nibbles j of both halves of a word, plus Pairs<T>::kRaised.
template <int j, class T>
__device__ __forceinline__ uint32_t raised_nibbles(uint32_t word) {
  uint32_t raised;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;"
      : "=r"(raised)
      : "r"(Pairs<T>::template placed<j>(word)), "r"(Pairs<T>::kRaisedMask), "r"(Pairs<T>::kRaisedBase));
  return raised;
}

/// The numbers of a unit as pairs, in the order of their columns. `table`: of this lane, for kNf4; `base`: of kInt4.
template <WeightFormat format, class T>
__device__ __forceinline__ void decode(uint4 unit, const uint32_t*, uint32_t, uint32_t (&pairs)[8]) {
  const uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (format == WeightFormat::kPlain) {
      pairs[i] = words[i];
    } else if constexpr (format == WeightFormat::kInt8) {
      pairs[2 * i] = Pairs<T>::template of_int8<0>(words[i]);
      pairs[2 * i + 1] = Pairs<T>::template of_int8<1>(words[i]);
    } else {
      pairs[2 * i] = Pairs<T>::of_fp8(static_cast<uint16_t>(words[i]));
      pairs[2 * i + 1] = Pairs<T>::of_fp8(static_cast<uint16_t>(words[i] >> 16));
    }
  }
}
template <WeightFormat format, class T>
__device__ __forceinline__ void decode(uint2 unit, const uint32_t* table, uint32_t base, uint32_t (&pairs)[8]) {
  const uint32_t words[2] = {unit.x, unit.y};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const auto word = words[i / 4];
    const int shift = 8 * (i % 4);
    if constexpr (format == WeightFormat::kNf4)
      pairs[i] = table[(word >> shift & 0xff) * 32];
    else
      pairs[i] = nibbles<T>(word >> (shift / 2), base);
  }
}

constexpr int kRowBytes = 64;  // of a chunk

/// What a lane has in flight of one chunk: rows g and g + 8 of each tile. kWhole: the chunk has one group.
template <WeightFormat format, bool kWhole, int kTiles>
struct Loaded {
  static constexpr int kScales = Layout<format>::kParts && !kWhole ? Layout<format>::kParts : 1;
  uint4 unit[kTiles][2];
  uint32_t scale[kTiles][kScales][2];  // as it is stored: registers are short
};

/// Results of a tile that a lane has. kOne: x has one row, so that of the columns of the instruction only the first
/// counts.
template <bool kOne>
constexpr int kResults = kOne ? 2 : 4;

/// Four lanes have 128 columns of a row, the first two those of one group and the others those of the next. Afterwards
/// each of them has 16 columns of both, those that column_of says.
__device__ __forceinline__ void share_groups(uint4 unit, int t, uint2 (&parts)[2]) {
  const uint2 low = {unit.x, unit.y}, high = {unit.z, unit.w};
  const uint2 given = t < 2 ? high : low;
  const uint2 got = {__shfl_xor_sync(0xffffffffu, given.x, 2), __shfl_xor_sync(0xffffffffu, given.y, 2)};
  parts[0] = t < 2 ? low : got;
  parts[1] = t < 2 ? got : high;
}
__device__ __forceinline__ int column_of(int t) {
  return (t & 1) * 32 + (t >> 1) * 16;
}

/// Pairs of x of a lane: kCount consecutive numbers.
template <int kCount, class T>
__device__ __forceinline__ void load_x(const T* from, bool there, uint32_t (&pairs)[kCount / 2]) {
  const auto* place = reinterpret_cast<const uint4*>(from);
#pragma unroll
  for (int i = 0; i < kCount / 8; ++i) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (there) v = place[i];
    pairs[4 * i] = v.x, pairs[4 * i + 1] = v.y, pairs[4 * i + 2] = v.z, pairs[4 * i + 3] = v.w;
  }
}

/// Adds the tile of 16 rows and kCount columns a lane, times x.
template <int kCount, class T>
__device__ __forceinline__ void add_products(float (&to)[4], const uint32_t (&pairs)[2][8],
                                             const uint32_t (&of_x)[kCount / 2]) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const uint32_t a[4] = {pairs[0][2 * j], pairs[1][2 * j], pairs[0][2 * j + 1], pairs[1][2 * j + 1]};
    multiply_tile(to, a, of_x[2 * j], of_x[2 * j + 1], T());
  }
}

/// A chunk of a format whose rows have one scale.
template <WeightFormat format, class T, int kTiles>
__device__ __forceinline__ void add_chunk(float (&sum)[kTiles][4], const Loaded<format, false, kTiles>& chunk,
                                          const T* x, bool has_x, int t) {
  constexpr int kPerLane = Layout<format>::kColumns / 4;
  uint32_t of_x[kPerLane / 2];
  load_x<kPerLane>(x + t * kPerLane, has_x, of_x);
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    uint32_t pairs[2][8];
#pragma unroll
    for (int r = 0; r < 2; ++r) decode<format, T>(chunk.unit[j][r], nullptr, 0, pairs[r]);
    add_products<kPerLane, T>(sum[j], pairs, of_x);
  }
}

/// The sum of x over a chunk, of the columns of the instruction that a lane has: a tile of ones times x.
template <class T>
__device__ __forceinline__ void sum_x(float (&all)[4], const T* x, bool has_x, int t) {
  constexpr uint32_t kOnes = Pairs<T>::kOnes;
  const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
  uint32_t of_x[16];
  load_x<32>(x + t * 32, has_x, of_x);
  start_tile(all, ones, of_x[0], of_x[1], T());
#pragma unroll
  for (int i = 1; i < 8; ++i) multiply_tile(all, ones, of_x[2 * i], of_x[2 * i + 1], T());
}

/// A chunk of int4 that is in one group. The tensor cores multiply nibbles as they are, raised by a constant; constant
/// and zero point, times the sum of x, are taken off what comes out. kOne: `of_chunk` is that sum.
template <class T, int kTiles, bool kOne>
__device__ __forceinline__ void add_group(float (&sum)[kTiles][kResults<kOne>],
                                          const Loaded<WeightFormat::kInt4, true, kTiles>& chunk, const T* x,
                                          bool has_x, int t, float of_chunk) {
  float all[4] = {of_chunk}, products[kTiles][4];
  if constexpr (!kOne) sum_x<T>(all, x, has_x, t);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    uint32_t of_x[4];
    load_x<8>(x + t * 32 + w * 8, has_x, of_x);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const uint4 &low = chunk.unit[j][0], &high = chunk.unit[j][1];
      const uint32_t a = w == 0 ? low.x : w == 1 ? low.y : w == 2 ? low.z : low.w;
      const uint32_t b = w == 0 ? high.x : w == 1 ? high.y : w == 2 ? high.z : high.w;
      const uint32_t first[4] = {raised_nibbles<0, T>(a), raised_nibbles<0, T>(b), raised_nibbles<1, T>(a),
                                 raised_nibbles<1, T>(b)};
      const uint32_t second[4] = {raised_nibbles<2, T>(a), raised_nibbles<2, T>(b), raised_nibbles<3, T>(a),
                                  raised_nibbles<3, T>(b)};
      if (w == 0)
        start_tile(products[j], first, of_x[0], of_x[1], T());
      else
        multiply_tile(products[j], first, of_x[0], of_x[1], T());
      multiply_tile(products[j], second, of_x[2], of_x[3], T());
    }
  }
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&chunk.scale[j][0][r]));
      const float below = -(pair.y + Pairs<T>::kRaised);
      constexpr int kEach = kResults<kOne> / 2;
#pragma unroll
      for (int c = 0; c < kEach; ++c) sum[j][r * kEach + c] += pair.x * (products[j][2 * r + c] + below * all[c]);
    }
}

/// A chunk of two groups; `whole`: the second is there.
template <WeightFormat format, class T>
__device__ __forceinline__ void add_groups(float (&sum)[1][4], const Loaded<format, false, 1>& chunk, const T* x,
                                           bool has_x, int t, const uint32_t* table, bool whole) {
  uint2 parts[2][2];
#pragma unroll
  for (int r = 0; r < 2; ++r) share_groups(chunk.unit[0][r], t, parts[r]);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    if (part == 1 && !whole) break;
    uint32_t pairs[2][8], of_x[8];
    float scale[2];
    load_x<16>(x + part * kPackedGroup + column_of(t), has_x, of_x);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t base = 0;
      scale[r] = __uint_as_float(chunk.scale[0][part][r]);
      if constexpr (format == WeightFormat::kInt4) {
        const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&chunk.scale[0][part][r]));
        scale[r] = pair.x;
        base = Pairs<T>::pack(pair.y + Pairs<T>::kNibbleValue, pair.y + Pairs<T>::kNibbleValue);
      }
      decode<format, T>(parts[r][part], table, base, pairs[r]);
    }
    float products[4] = {};
    add_products<16, T>(products, pairs, of_x);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[0][i] += scale[i / 2] * products[i];
  }
}

}  // namespace
}  // namespace levin::kernels::detail
