// A product of few rows with a packed matrix. It reads the matrix once, so its time is that of the memory.
//
// Tensor cores multiply tiles of 16 rows of the matrix with all rows of x (their 8 columns). A warp holds a tile as the
// instruction wants it: lane 4 g + t has numbers of rows g and g + 8. Which column of the matrix is which k of the
// instruction is free as long as x has the same order, so every lane takes consecutive columns, in one load. The warps
// of a block share out the columns and add up in shared memory.
#include <cuda_runtime.h>

#include "levin/kernels/activation_device.cuh"
#include "levin/kernels/early_start.cuh"
#include "levin/kernels/numbers.cuh"
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

/// The lowest nibbles of both halves of a word, less the zero point.
template <class T>
__device__ __forceinline__ uint32_t nibbles(uint32_t word, uint32_t base) {
  uint32_t raised;  // (word & 0x000f000f) | base of numbers, in one instruction: a compiler makes two for two constants
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(raised) : "r"(word), "r"(0x000f000fu), "r"(Pairs<T>::kNibbleBase));
  return Pairs<T>::subtract(raised, base);
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

/// What a lane has in flight of one chunk: rows g and g + 8 of the tile. kWhole: the chunk has one group.
template <WeightFormat format, bool kWhole>
struct Loaded {
  static constexpr int kScales = Layout<format>::kParts && !kWhole ? Layout<format>::kParts : 1;
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

template <WeightFormat format, bool kWhole>
__device__ __forceinline__ void load_scales(const PackedMatrix& matrix, const PackedMatrix& second,
                                            const Groups& groups, int64_t chunk, Loaded<format, kWhole>& to) {
  constexpr int kParts = Layout<format>::kParts;
#pragma unroll
  for (int part = 0; part < (kWhole ? 1 : kParts); ++part) {
    // The last chunk may have one part.
    const int at = min(static_cast<int>(chunk) * kParts + part, groups.units - 1) >> groups.shift;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto& of = r == 0 ? matrix : second;
      const auto i = groups.first[r] + at;
      if constexpr (format == WeightFormat::kNf4)
        to.scale[part][r] = __float_as_uint(nf4_scale(of, i));
      else
        to.scale[part][r] = __ldg(static_cast<const uint32_t*>(of.scales) + i);
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
__device__ __forceinline__ void add_chunk(float (&sum)[4], const Loaded<format, false>& chunk, const T* x, bool has_x,
                                          int t) {
  constexpr int kPerLane = Layout<format>::kColumns / 4;
  uint32_t pairs[2][8], of_x[kPerLane / 2];
  load_x<kPerLane>(x + t * kPerLane, has_x, of_x);
#pragma unroll
  for (int r = 0; r < 2; ++r) decode<format, T>(chunk.unit[r], nullptr, 0, pairs[r]);
  add_products<kPerLane, T>(sum, pairs, of_x);
}

/// A chunk of int4 that is in one group.
template <class T>
__device__ __forceinline__ void add_group(float (&sum)[4], const Loaded<WeightFormat::kInt4, true>& chunk, const T* x,
                                          bool has_x, int t) {
  float factor[2], products[2][4] = {};
  uint32_t base[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&chunk.scale[0][r]));
    factor[r] = pair.x;
    base[r] = Pairs<T>::pack(pair.y + Pairs<T>::kNibbleValue, pair.y + Pairs<T>::kNibbleValue);
  }
  const uint32_t words[2][4] = {{chunk.unit[0].x, chunk.unit[0].y, chunk.unit[0].z, chunk.unit[0].w},
                                {chunk.unit[1].x, chunk.unit[1].y, chunk.unit[1].z, chunk.unit[1].w}};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    uint32_t of_x[4];
    load_x<8>(x + t * 32 + w * 8, has_x, of_x);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t a[4] = {nibbles<T>(words[0][w] >> (8 * i), base[0]), nibbles<T>(words[1][w] >> (8 * i), base[1]),
                             nibbles<T>(words[0][w] >> (8 * i + 4), base[0]),
                             nibbles<T>(words[1][w] >> (8 * i + 4), base[1])};
      multiply_tile(products[i], a, of_x[2 * i], of_x[2 * i + 1], T());
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] += factor[i / 2] * (products[0][i] + products[1][i]);
}

/// A chunk of two groups; `whole`: the second is there.
template <WeightFormat format, class T>
__device__ __forceinline__ void add_groups(float (&sum)[4], const Loaded<format, false>& chunk, const T* x, bool has_x,
                                           int t, const uint32_t* table, bool whole) {
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

template <class T>
__device__ __forceinline__ float with_activation(float x, RowActivation activation) {
  switch (activation) {
    case RowActivation::kRelu:
      return activated<ActivationKind::kRelu, T>(x);
    case RowActivation::kGelu:
      return activated<ActivationKind::kGelu, T>(x);
    case RowActivation::kGeluTanh:
      return activated<ActivationKind::kGeluTanh, T>(x);
    case RowActivation::kSilu:
      return activated<ActivationKind::kSilu, T>(x);
    default:
      return x;
  }
}

/// What a sum of a row is multiplied by, and what is added.
template <WeightFormat format, class T>
__device__ __forceinline__ float2 scale_and_bias(const PackedMatrix& matrix, const void* bias, int64_t row) {
  float scale = 1;
  if (format == WeightFormat::kInt8 || format == WeightFormat::kFp8)
    scale = __ldg(static_cast<const float*>(matrix.scales) + row) * (format == WeightFormat::kInt8 ? kInt8Unit : 1);
  return {scale, bias ? static_cast<float>(static_cast<const T*>(bias)[row]) : 0.0f};
}

/// How a kernel divides the work. kUnroll: chunks that a warp loads ahead. kBlocks: that have registers on a
/// multiprocessor; 0: as many as there are.
template <int kWarpsOf, int kUnrollOf, int kBlocksOf = 0>
struct Division {
  static constexpr int kWarps = kWarpsOf, kUnroll = kUnrollOf, kBlocks = kBlocksOf;
};

/// kWhole: of int4, a chunk has one group. kGated: rows 8 to 15 of a tile are those of the second matrix that go with
/// rows 0 to 7.
template <WeightFormat format, class T, class D, bool kWhole, bool kGated>
__global__ void __launch_bounds__(D::kWarps * 32, D::kBlocks) skinny_linear(SkinnyLinear p) {
  let_next_start();
  using L = Layout<format>;
  constexpr int kWarps = D::kWarps, kUnroll = D::kUnroll, kRows = kGated ? kTile / 2 : kTile;
  extern __shared__ uint32_t shared[];
  __shared__ float sums[kWarps][kTile * 8];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const auto& matrix = p.matrix;
  const auto& second = kGated ? p.up : p.matrix;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t chunks = (matrix.columns + L::kColumns - 1) / L::kColumns;
  // Rows behind the last are read as the last, and not written.
  const int64_t rows[2] = {min(first + g, matrix.rows - 1), min(first + g + (kGated ? 0 : 8), matrix.rows - 1)};
  const auto row_bytes = matrix.columns * kRowBytes / L::kColumns;
  const char* codes[2];
  for (int r = 0; r < 2; ++r)
    codes[r] = static_cast<const char*>(r == 0 ? matrix.codes : second.codes) + rows[r] * row_bytes + t * 16;
  const bool has_x = g < p.m;
  const auto* x = static_cast<const T*>(p.x) + (has_x ? g : 0) * matrix.columns;
  const auto is_whole = [&](int64_t chunk) {
    return kWhole || L::kParts == 0 || (chunk + 1) * L::kColumns <= matrix.columns;
  };

  Groups groups{static_cast<int>(matrix.columns / kPackedGroup), p.group_shift, {}};
  for (int r = 0; r < 2; ++r) groups.first[r] = rows[r] * (groups.units >> groups.shift);
  Loaded<format, kWhole> next[kUnroll];
  const auto load = [&](int64_t run) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (run + u < chunks) {
        const bool there = is_whole(run + u) || t < 2;
#pragma unroll
        for (int r = 0; r < 2; ++r)
          next[u].unit[r] = there ? streamed(reinterpret_cast<const uint4*>(codes[r] + (run + u) * kRowBytes))
                                  : make_uint4(0, 0, 0, 0);
        load_scales<format, kWhole>(matrix, second, groups, run + u, next[u]);
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
    Loaded<format, kWhole> now[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) now[u] = next[u];
    load(run + kWarps * kUnroll);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (run + u < chunks) {
        const auto* of_chunk = x + (run + u) * L::kColumns;
        if constexpr (L::kParts == 0)
          add_chunk<format, T>(sum, now[u], of_chunk, has_x, t);
        else if constexpr (kWhole)
          add_group<T>(sum, now[u], of_chunk, has_x, t);
        else
          add_groups<format, T>(sum, now[u], of_chunk, has_x, t, shared + lane, is_whole(run + u));
      }
  }
  // A thread for each number; what does not depend on the sums is on its way while the warps meet.
  static_assert(kWarps * 32 >= kRows * 8);
  const int row_of_tile = static_cast<int>(threadIdx.x) % kRows, column = static_cast<int>(threadIdx.x) / kRows;
  const int64_t row = first + row_of_tile, at = column * matrix.rows + row;
  const bool writes = column < p.m && row < matrix.rows;
  float2 of_row = {1, 0}, of_up = {1, 0};
  float kept = 0;
  if (writes) {
    of_row = scale_and_bias<format, T>(matrix, p.bias, row);
    if constexpr (kGated) of_up = scale_and_bias<format, T>(second, p.up_bias, row);
    if (p.residual) kept = static_cast<float>(static_cast<const T*>(p.residual)[at]);
  }
  // [column of x][row of the tile]
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[warp][(2 * t + i % 2) * kTile + g + i / 2 * 8] = sum[i];
  __syncthreads();
  if (!writes) return;
  const int place = column * kTile + row_of_tile;
  float total = 0;
  for (int w = 0; w < kWarps; ++w) total += sums[w][place];
  total = total * of_row.x + of_row.y;
  if constexpr (kGated) {
    float up = 0;
    for (int w = 0; w < kWarps; ++w) up += sums[w][place + kRows];
    total = activated<ActivationKind::kSilu, T>(total) * (up * of_up.x + of_up.y);
  } else {
    total = with_activation<T>(total, p.activation);
  }
  static_cast<T*>(p.y)[at] = static_cast<T>(total + kept);
}

template <WeightFormat format, class T, bool kWhole, bool kGated>
int launch_with(const SkinnyLinear& p, CUstream_st* stream) {
  constexpr int kRows = kGated ? kTile / 2 : kTile;
  const auto blocks = static_cast<unsigned>((p.matrix.rows + kRows - 1) / kRows);
  const size_t table = format == WeightFormat::kNf4 ? 256 * 32 * sizeof(uint32_t) : 0;
  const auto launch = [&](auto division) {
    using D = decltype(division);
    return launch_early(skinny_linear<format, T, D, kWhole, kGated>, {blocks, D::kWarps * 32, table}, stream, p);
  };
  // Measured on an H200 with the products of a Llama-7B (docs/quantization.md). Where there are few tiles, more warps
  // share the columns of one. Packed numbers need registers.
  if constexpr (format == WeightFormat::kPlain)
    return launch(Division<16, 2>());
  else if constexpr (Layout<format>::kParts == 0)
    return kGated ? launch(Division<8, 2>()) : launch(Division<16, 1>());
  else if constexpr (kWhole)
    return blocks < 512 || kGated ? launch(Division < kGated ? 4 : 8, 2 > ()) : launch(Division<8, 1>());
  else
    return blocks >= 512 ? launch(Division<8, 1>()) : launch(Division<16, 1, 2>());
}

template <WeightFormat format, class T>
int launch_of(const SkinnyLinear& p, CUstream_st* stream) {
  const bool gated = p.activation == RowActivation::kGatedSilu;
  if constexpr (format == WeightFormat::kInt4)
    if (p.group_shift > 0)
      return gated ? launch_with<format, T, true, true>(p, stream) : launch_with<format, T, true, false>(p, stream);
  return gated ? launch_with<format, T, false, true>(p, stream) : launch_with<format, T, false, false>(p, stream);
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
