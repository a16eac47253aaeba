// A product of few rows with a packed matrix. It reads the matrix once, so its time is that of the memory.
//
// Tensor cores multiply tiles of 16 rows of the matrix with all rows of x (their 8 columns). A warp holds a tile as the
// instruction wants it: lane 4 g + t has numbers of rows g and g + 8. Which column of the matrix is which k of the
// instruction is free as long as x has the same order, so every lane takes consecutive columns, in one load. The warps
// of a block share out the columns and add up in shared memory.
#include <cuda_runtime.h>

#include "levin/kernels/early_start.cuh"
#include "levin/kernels/quantized/packed_decode.cuh"
#include "levin/kernels/quantized/quantized_launch.h"

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
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_tile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                              __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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
      pairs[i] = Pairs<T>::subtract((word >> (shift / 2) & 0x000f000fu) | Pairs<T>::kNibbleBase, base);
  }
}

constexpr int kRowBytes = 64;  // of a chunk

/// What a lane has in flight of one chunk: rows g and g + 8 of the tile.
template <WeightFormat format>
struct Loaded {
  static constexpr int kScales = Layout<format>::kParts ? Layout<format>::kParts : 1;
  uint4 unit[2];
  uint32_t scale[kScales][2];  // as it is stored: registers are short
};

/// Where the scales of a lane are. A division of 64 bits for each chunk would take longer than all else.
struct Groups {
  /// kPackedGroup columns each, 2^shift of which share a scale.
  int units, shift;
  /// Of rows g and g + 8.
  int64_t first[2];
};

template <WeightFormat format, class T>
__device__ __forceinline__ void load_scales(const PackedMatrix& matrix, const Groups& groups, int64_t chunk,
                                            Loaded<format>& to) {
  constexpr int kParts = Layout<format>::kParts;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    // The last chunk may have one part.
    const int at = min(static_cast<int>(chunk) * kParts + part, groups.units - 1) >> groups.shift;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto i = groups.first[r] + at;
      if constexpr (format == WeightFormat::kNf4)
        to.scale[part][r] = __float_as_uint(nf4_scale(matrix, i));
      else
        to.scale[part][r] = __ldg(static_cast<const uint32_t*>(matrix.scales) + i);
    }
  }
}

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
    const uint4 v = there ? __ldg(place + i) : make_uint4(0, 0, 0, 0);
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
template <WeightFormat format, class T>
__device__ __forceinline__ void add_chunk(float (&sum)[4], const Loaded<format>& chunk, const T* x, bool has_x, int t) {
  constexpr int kPerLane = Layout<format>::kColumns / 4;
  uint32_t pairs[2][8], of_x[kPerLane / 2];
  load_x<kPerLane>(x + t * kPerLane, has_x, of_x);
#pragma unroll
  for (int r = 0; r < 2; ++r) decode<format, T>(chunk.unit[r], nullptr, 0, pairs[r]);
  add_products<kPerLane, T>(sum, pairs, of_x);
}

/// A chunk of two groups; `whole`: the second is there.
template <WeightFormat format, class T>
__device__ __forceinline__ void add_groups(float (&sum)[4], const Loaded<format>& chunk, const T* x, bool has_x, int t,
                                           const uint32_t* table, bool whole) {
  uint2 parts[2][2];
#pragma unroll
  for (int r = 0; r < 2; ++r) share_groups(chunk.unit[r], t, parts[r]);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    if (part == 1 && !whole) break;
    uint32_t pairs[2][8], of_x[8];
    float scale[2];
    load_x<16>(x + part * kPackedGroup + column_of(t), has_x, of_x);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t base = 0;
      scale[r] = __uint_as_float(chunk.scale[part][r]);
      if constexpr (format == WeightFormat::kInt4) {
        const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&chunk.scale[part][r]));
        scale[r] = pair.x;
        base = Pairs<T>::pack(pair.y + Pairs<T>::kNibbleValue, pair.y + Pairs<T>::kNibbleValue);
      }
      decode<format, T>(parts[r][part], table, base, pairs[r]);
    }
    float products[4] = {};
    add_products<16, T>(products, pairs, of_x);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] += scale[i / 2] * products[i];
  }
}

/// kUnroll: chunks that a warp loads ahead. kBlocks: that have registers on a multiprocessor; 0: as many as there are.
template <WeightFormat format, class T, int kWarps, int kUnroll, int kBlocks = 0>
__global__ void __launch_bounds__(kWarps * 32, kBlocks) skinny_linear(SkinnyLinear p) {
  let_next_start();
  using L = Layout<format>;
  extern __shared__ uint32_t shared[];
  __shared__ float sums[kWarps][kTile * 8];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const auto& matrix = p.matrix;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t chunks = (matrix.columns + L::kColumns - 1) / L::kColumns;
  // Rows behind the last are read as the last, and not written.
  const int64_t rows[2] = {min(first + g, matrix.rows - 1), min(first + g + 8, matrix.rows - 1)};
  const auto row_bytes = matrix.columns * kRowBytes / L::kColumns;
  const char* codes[2];
  for (int r = 0; r < 2; ++r) codes[r] = static_cast<const char*>(matrix.codes) + rows[r] * row_bytes + t * 16;
  const bool has_x = g < p.m;
  const auto* x = static_cast<const T*>(p.x) + (has_x ? g : 0) * matrix.columns;
  const auto is_whole = [&](int64_t chunk) { return L::kParts == 0 || (chunk + 1) * L::kColumns <= matrix.columns; };

  Groups groups{static_cast<int>(matrix.columns / kPackedGroup), p.group_shift, {}};
  for (int r = 0; r < 2; ++r) groups.first[r] = rows[r] * (groups.units >> groups.shift);
  Loaded<format> next[kUnroll];
  const auto load = [&](int64_t run) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (run + u < chunks) {
        const bool there = is_whole(run + u) || t < 2;
#pragma unroll
        for (int r = 0; r < 2; ++r)
          next[u].unit[r] = there ? streamed(reinterpret_cast<const uint4*>(codes[r] + (run + u) * kRowBytes))
                                  : make_uint4(0, 0, 0, 0);
        load_scales<format, T>(matrix, groups, run + u, next[u]);
      }
  };
  int64_t run = static_cast<int64_t>(warp) * kUnroll;
  if (!p.early_matrix) wait_for_previous();
  load(run);
  if constexpr (format == WeightFormat::kNf4) {
    // A copy for every lane: each reads its own bank.
    for (int i = warp; i < 256; i += kWarps)
      shared[i * 32 + lane] = Pairs<T>::pack(kNf4OnDevice[i >> 4], kNf4OnDevice[i & 15]);
    __syncthreads();
  }
  wait_for_previous();  // x is a result of the kernels before this one
  float sum[4] = {};
  for (; run < chunks; run += kWarps * kUnroll) {
    Loaded<format> now[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) now[u] = next[u];
    load(run + kWarps * kUnroll);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (run + u < chunks) {
        const auto* of_chunk = x + (run + u) * L::kColumns;
        if constexpr (L::kParts == 0)
          add_chunk<format, T>(sum, now[u], of_chunk, has_x, t);
        else
          add_groups<format, T>(sum, now[u], of_chunk, has_x, t, shared + lane, is_whole(run + u));
      }
  }
  // [column of x][row of the tile]
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[warp][(2 * t + i % 2) * kTile + g + i / 2 * 8] = sum[i];
  __syncthreads();
  for (int i = threadIdx.x; i < kTile * 8; i += kWarps * 32) {
    const int64_t row = first + i % kTile, column = i / kTile;
    if (row >= matrix.rows || column >= p.m) continue;
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += sums[w][i];
    if (format == WeightFormat::kInt8 || format == WeightFormat::kFp8)
      total *= __ldg(static_cast<const float*>(matrix.scales) + row) * (format == WeightFormat::kInt8 ? kInt8Unit : 1);
    if (p.bias) total += static_cast<float>(static_cast<const T*>(p.bias)[row]);
    static_cast<T*>(p.y)[column * matrix.rows + row] = static_cast<T>(total);
  }
}

template <WeightFormat format, class T>
int launch_of(const SkinnyLinear& p, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>((p.matrix.rows + kTile - 1) / kTile);
  const size_t table = format == WeightFormat::kNf4 ? 256 * 32 * sizeof(uint32_t) : 0;
  // Measured on an H200: where there are few tiles, more warps share the columns of one. Packed numbers need registers.
  constexpr bool kPacked = Layout<format>::kParts > 0;
  if (!kPacked && blocks >= 768)
    launch_early(skinny_linear<format, T, 4, 2>, {blocks, 4 * 32, table}, stream, p);
  else if (!kPacked)
    launch_early(skinny_linear<format, T, 16, 1>, {blocks, 16 * 32, table}, stream, p);
  else if (blocks >= 512)
    launch_early(skinny_linear<format, T, 8, 1>, {blocks, 8 * 32, table}, stream, p);
  else
    launch_early(skinny_linear<format, T, 16, 1, 2>, {blocks, 16 * 32, table}, stream, p);
  return cudaGetLastError();
}

template <class T>
int launch_in(const SkinnyLinear& p, CUstream_st* stream) {
  switch (p.matrix.format) {
    case WeightFormat::kPlain:
      return launch_of<WeightFormat::kPlain, T>(p, stream);
    case WeightFormat::kInt8:
      return launch_of<WeightFormat::kInt8, T>(p, stream);
    case WeightFormat::kFp8:
      return launch_of<WeightFormat::kFp8, T>(p, stream);
    case WeightFormat::kInt4:
      return launch_of<WeightFormat::kInt4, T>(p, stream);
    case WeightFormat::kNf4:
      return launch_of<WeightFormat::kNf4, T>(p, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int launch_skinny_linear(const SkinnyLinear& given, CUstream_st* stream) {
  if (given.m == 0 || given.matrix.rows == 0) return cudaSuccess;
  auto product = given;
  while ((kPackedGroup << product.group_shift) < product.matrix.group) ++product.group_shift;
  return product.type == NumberType::kHalf ? launch_in<__half>(product, stream)
                                           : launch_in<__nv_bfloat16>(product, stream);
}

}  // namespace levin::kernels::detail
