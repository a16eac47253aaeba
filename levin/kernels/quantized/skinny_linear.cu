// A product of few rows with a packed matrix. It reads the matrix once, so its time is that of the memory.
//
// Tensor cores multiply tiles of 16 rows of the matrix with all rows of x (their 8 columns). A warp holds a tile as the
// instruction wants it: lane 4 g + t has numbers of rows g and g + 8. Which column of the matrix is which k of the
// instruction is free as long as x has the same order, so every lane takes consecutive columns, in one load. The warps
// of a block share out the columns and add up in shared memory.
#include <cuda_runtime.h>

#include "levin/kernels/quantized/packed_decode.cuh"
#include "levin/kernels/quantized/quantized_launch.h"

namespace levin::kernels::detail {
namespace {

constexpr int kTile = 16;

template <WeightFormat format>
struct Layout;
/// kColumns: of a row of the tile in one chunk; Unit: what a lane loads of a row.
template <>
struct Layout<WeightFormat::kPlain> {
  static constexpr int kColumns = 32, kBytes = 64, kGrouped = 0;
  using Unit = uint4;
};
template <>
struct Layout<WeightFormat::kInt8> {
  static constexpr int kColumns = 64, kBytes = 64, kGrouped = 0;
  using Unit = uint4;
};
template <>
struct Layout<WeightFormat::kFp8> : Layout<WeightFormat::kInt8> {};
template <>
struct Layout<WeightFormat::kInt4> {
  static constexpr int kColumns = 64, kBytes = 32, kGrouped = 1;
  using Unit = uint2;
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
__device__ __forceinline__ uint2 streamed(const uint2* from) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
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

/// What a lane has in flight of one chunk: rows g and g + 8 of the tile.
template <WeightFormat format>
struct Loaded {
  typename Layout<format>::Unit unit[2];
  float scale[2];
  uint32_t base[2];
};

template <WeightFormat format, class T>
__device__ __forceinline__ void load_scales(const PackedMatrix& matrix, const int64_t (&rows)[2], int64_t chunk,
                                            Loaded<format>& to) {
  if constexpr (Layout<format>::kGrouped) {
    const auto groups = matrix.columns / matrix.group;
    const auto at = chunk * Layout<format>::kColumns / matrix.group;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto i = rows[r] * groups + at;
      if constexpr (format == WeightFormat::kNf4) {
        to.scale[r] = nf4_scale(matrix, i);
      } else {
        const float2 pair = __half22float2(__ldg(static_cast<const __half2*>(matrix.scales) + i));
        to.scale[r] = pair.x;
        to.base[r] = Pairs<T>::pack(pair.y + Pairs<T>::kNibbleValue, pair.y + Pairs<T>::kNibbleValue);
      }
    }
  }
}

/// kUnroll: chunks that a warp loads ahead.
template <WeightFormat format, class T, int kWarps, int kUnroll>
__global__ void __launch_bounds__(kWarps * 32) skinny_linear(SkinnyLinear p) {
  using L = Layout<format>;
  using Unit = typename L::Unit;
  constexpr int kPerLane = L::kColumns / 4, kProducts = kPerLane / 4, kLoadsOfX = kPerLane / 8;
  extern __shared__ uint32_t shared[];
  __shared__ float sums[kWarps][kTile * 8];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const auto& matrix = p.matrix;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile, chunks = matrix.columns / L::kColumns;
  // Rows behind the last are read as the last, and not written.
  const int64_t rows[2] = {min(first + g, matrix.rows - 1), min(first + g + 8, matrix.rows - 1)};
  const auto row_bytes = chunks * L::kBytes;
  const char* codes[2];
  for (int r = 0; r < 2; ++r)
    codes[r] = static_cast<const char*>(matrix.codes) + rows[r] * row_bytes + t * static_cast<int>(sizeof(Unit));
  const bool has_x = g < p.m;
  const auto* x = static_cast<const T*>(p.x) + (has_x ? g : 0) * matrix.columns + t * kPerLane;

  Loaded<format> next[kUnroll];
  const auto load = [&](int64_t run) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (run + u < chunks) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          next[u].unit[r] = streamed(reinterpret_cast<const Unit*>(codes[r] + (run + u) * L::kBytes));
        load_scales<format, T>(matrix, rows, run + u, next[u]);
      }
  };
  int64_t run = static_cast<int64_t>(warp) * kUnroll;
  load(run);
  if constexpr (format == WeightFormat::kNf4) {
    // A copy for every lane: each reads its own bank.
    for (int i = warp; i < 256; i += kWarps)
      shared[i * 32 + lane] = Pairs<T>::pack(kNf4OnDevice[i >> 4], kNf4OnDevice[i & 15]);
    __syncthreads();
  }
  float sum[4] = {};
  for (; run < chunks; run += kWarps * kUnroll) {
    Loaded<format> now[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) now[u] = next[u];
    load(run + kWarps * kUnroll);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (run + u < chunks) {
        uint32_t pairs[2][8], of_x[4 * kLoadsOfX];
        const auto* place = reinterpret_cast<const uint4*>(x + (run + u) * L::kColumns);
#pragma unroll
        for (int i = 0; i < kLoadsOfX; ++i) {
          const uint4 v = has_x ? __ldg(place + i) : make_uint4(0, 0, 0, 0);
          of_x[4 * i] = v.x, of_x[4 * i + 1] = v.y, of_x[4 * i + 2] = v.z, of_x[4 * i + 3] = v.w;
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) decode<format, T>(now[u].unit[r], shared + lane, now[u].base[r], pairs[r]);
        float part[4] = {};
        auto& into = L::kGrouped ? part : sum;
#pragma unroll
        for (int j = 0; j < kProducts; ++j) {
          const uint32_t a[4] = {pairs[0][2 * j], pairs[1][2 * j], pairs[0][2 * j + 1], pairs[1][2 * j + 1]};
          multiply_tile(into, a, of_x[2 * j], of_x[2 * j + 1], T());
        }
        if constexpr (L::kGrouped != 0)
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[i] += now[u].scale[i / 2] * part[i];
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
  constexpr int kWarps = 8, kUnroll = 4;
  skinny_linear<format, T, kWarps, kUnroll><<<blocks, kWarps * 32, table, stream>>>(p);
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

int launch_skinny_linear(const SkinnyLinear& product, CUstream_st* stream) {
  if (product.m == 0 || product.matrix.rows == 0) return cudaSuccess;
  return product.type == NumberType::kHalf ? launch_in<__half>(product, stream)
                                           : launch_in<__nv_bfloat16>(product, stream);
}

}  // namespace levin::kernels::detail
