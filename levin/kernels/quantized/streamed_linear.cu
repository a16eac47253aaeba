// A product of few rows with a matrix that comes through shared memory, with what stands before and behind it.
//
// Tiles of 16 rows of the matrix are multiplied as in skinny_linear.cu. Here a block stays on its multiprocessor and
// takes tile after tile. Every lane has a ring of places in shared memory for what it will multiply, and copies into it
// without waiting, some chunks ahead: enough bytes are on their way for the whole bandwidth, and most of
// them before the kernels ahead of this one have ended. What a lane reads it has copied itself, so no thread waits for
// another but at the end of a tile. One block of a multiprocessor has less than half of its registers and shared
// memory: the next product begins beside it.
#include <cuda_runtime.h>

#include "levin/kernels/activation_device.cuh"
#include "levin/kernels/async_copy.cuh"
#include "levin/kernels/early_start.cuh"
#include "levin/kernels/packs.cuh"
#include "levin/kernels/quantized/packed_decode.cuh"
#include "levin/kernels/quantized/quantized_launch.h"

namespace levin::kernels::detail {
namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps, kTile = 16, kChunkBytes = 64;

/// Columns of a row of the matrix in a chunk.
template <WeightFormat format>
constexpr int kColumns = format == WeightFormat::kPlain  ? 32
                         : format == WeightFormat::kInt4 ? 128
                                                         : 64;

/// Of the ring: scales of int4 take room, too.
template <WeightFormat format>
constexpr int kStages = format == WeightFormat::kInt4 ? 4 : 5;

// ---- shared memory

/// Rows of x begin in other banks.
constexpr int kPadding = 8;

/// Places of what comes behind the ring, in bytes.
struct SharedPlaces {
  int scales, sums, slots, x, bytes;
};

template <WeightFormat format>
__host__ __device__ inline SharedPlaces shared_places(const SkinnyLinear& p) {
  constexpr int kSlots = kStages<format> * kWarps * 2 * 32;
  const int m = static_cast<int>(p.m), columns = static_cast<int>(p.matrix.columns);
  SharedPlaces places{};
  places.scales = kSlots * 16;
  places.sums = places.scales + (format == WeightFormat::kInt4 ? kSlots * 4 : 0);
  places.slots = places.sums + 2 * kWarps * kTile * m * 4;
  places.x = places.slots + 2 * kWarps * 4;
  places.bytes = places.x + m * (columns + kPadding) * 2;
  return places;
}

// ---- numbers

__device__ __forceinline__ void multiply_tile(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                              uint32_t b0, uint32_t b1, __half) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_tile(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                              uint32_t b0, uint32_t b1, __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Words of a lane that belong to one word of a packed row, as pairs in the order of their columns.
template <WeightFormat format, class T>
__device__ __forceinline__ void decode_word(uint32_t word, uint32_t base, uint32_t* pairs) {
  if constexpr (format == WeightFormat::kPlain) {
    pairs[0] = word;
  } else if constexpr (format == WeightFormat::kInt8) {
    pairs[0] = Pairs<T>::template of_int8<0>(word);
    pairs[1] = Pairs<T>::template of_int8<1>(word);
  } else if constexpr (format == WeightFormat::kFp8) {
    pairs[0] = Pairs<T>::of_fp8(static_cast<uint16_t>(word));
    pairs[1] = Pairs<T>::of_fp8(static_cast<uint16_t>(word >> 16));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs[i] = Pairs<T>::subtract((word >> (4 * i) & 0x000f000fu) | Pairs<T>::kNibbleBase, base);
  }
}

/// Adds a chunk of the tile times x. `unit`: 16 bytes of rows g and g + 8; `scale`: theirs, of int4.
template <WeightFormat format, class T>
__device__ __forceinline__ void add_chunk(float (&sum)[2][4], const uint4 (&unit)[2], const uint32_t (&scale)[2],
                                          const T* x, bool has_x) {
  constexpr int kPairsOfWord = kColumns<format> / 32;  // of a lane
  const uint32_t words[2][4] = {{unit[0].x, unit[0].y, unit[0].z, unit[0].w},
                                {unit[1].x, unit[1].y, unit[1].z, unit[1].w}};
  float products[2][4] = {};
  float factor[2] = {1, 1};
  uint32_t base[2] = {};
  if constexpr (format == WeightFormat::kInt4) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&scale[r]));
      factor[r] = pair.x;
      base[r] = Pairs<T>::pack(pair.y + Pairs<T>::kNibbleValue, pair.y + Pairs<T>::kNibbleValue);
    }
  }
  auto& to = format == WeightFormat::kInt4 ? products : sum;
#pragma unroll
  for (int i = 0; i < kPairsOfWord; ++i) {  // four pairs of x at a time
    uint4 pairs_of_x = make_uint4(0, 0, 0, 0);
    if (has_x) pairs_of_x = *reinterpret_cast<const uint4*>(x + 8 * i);
    uint32_t a[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int w = 0; w < 4 / kPairsOfWord; ++w)
        decode_word<format, T>(words[r][i * 4 / kPairsOfWord + w], base[r], a[r] + w * kPairsOfWord);
    multiply_tile(to[0], a[0][0], a[1][0], a[0][1], a[1][1], pairs_of_x.x, pairs_of_x.y, T());
    multiply_tile(to[1], a[0][2], a[1][2], a[0][3], a[1][3], pairs_of_x.z, pairs_of_x.w, T());
  }
  if constexpr (format == WeightFormat::kInt4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[0][i] += factor[i / 2] * (products[0][i] + products[1][i]);
  }
}

// ---- x

/// Rows of x in shared memory, normed where that is asked for. The warps share out the rows. All threads call it; the
/// last step is a barrier.
template <class T>
__device__ __forceinline__ void take_rows(const SkinnyLinear& p, T* to, float* slots) {
  const int columns = static_cast<int>(p.matrix.columns), stride = columns + kPadding;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = p.m > 4 ? 8 : p.m > 2 ? 4 : static_cast<int>(p.m), per_row = kWarps / rows;
  const int row = warp / per_row, first = (warp % per_row * 32 + lane) * 8, step = per_row * 32 * 8;
  const bool has_row = row < p.m;
  const T* from = static_cast<const T*>(p.x) + (has_row ? row : 0) * p.matrix.columns;
  T* own = to + (has_row ? row : 0) * stride;
  const int end = has_row ? columns : 0;
  const auto sum_of_row = [&](float value, float* places) {
    value = warp_sum(value);
    if (lane == 0) places[warp] = value;
    __syncthreads();
    value = 0;
    for (int w = row * per_row; w < (row + 1) * per_row; ++w) value += places[w];
    return value;
  };
  float sum = 0, squares = 0;
  for (int c = first; c < end; c += step) {
    const auto pack = load<T, 8>(from, c);
    store<T, 8>(own, c, pack);
    float x[8];
    unpack<T, 8>(pack, x);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += x[k], squares += x[k] * x[k];
  }
  if (!p.norm_weight) return __syncthreads();
  float mean = 0;
  if (!p.rms) {
    mean = sum_of_row(sum, slots) / static_cast<float>(columns);
    squares = 0;
    for (int c = first; c < end; c += step) {
      float x[8];
      load_wide<8, T>(own, c, x);
#pragma unroll
      for (int k = 0; k < 8; ++k) squares += (x[k] - mean) * (x[k] - mean);
    }
  }
  const float rstd = rsqrtf(sum_of_row(squares, slots + kWarps) / static_cast<float>(columns) + p.eps);
  for (int c = first; c < end; c += step) {
    float x[8], weight[8], bias[8] = {};
    load_wide<8, T>(own, c, x);
    load_wide<8, T>(p.norm_weight, c, weight);
    if (p.norm_bias) load_wide<8, T>(p.norm_bias, c, bias);
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = (x[k] - mean) * rstd * weight[k] + bias[k];
    store_packed<T, 8>(own, c, x);
  }
  __syncthreads();
}

// ---- the end of a tile

template <class T>
__device__ __forceinline__ float number_at(const void* from, int64_t at) {
  return from ? widened(static_cast<const T*>(from)[at]) : 0.0f;
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

__device__ __forceinline__ float scale_of_row(const PackedMatrix& matrix, int64_t row) {
  if (matrix.format == WeightFormat::kInt8) return __ldg(static_cast<const float*>(matrix.scales) + row) * kInt8Unit;
  return matrix.format == WeightFormat::kFp8 ? __ldg(static_cast<const float*>(matrix.scales) + row) : 1.0f;
}

/// Adds up what the warps have of a tile and writes it. `sums`: [warp][column of x][row of the tile].
template <class T, bool kGated>
__device__ __forceinline__ void end_tile(const SkinnyLinear& p, int64_t tile, const float* sums) {
  constexpr int kRows = kGated ? kTile / 2 : kTile;
  const int i = static_cast<int>(threadIdx.x), column = i / kRows;
  const int64_t row = tile * kRows + i % kRows;
  const int m = static_cast<int>(p.m);
  const bool writes = column < m && row < p.matrix.rows;
  float scale = 1, added = 0, up_scale = 1, up_added = 0, kept = 0;
  if (writes) {
    scale = scale_of_row(p.matrix, row);
    added = number_at<T>(p.bias, row);
    kept = number_at<T>(p.residual, column * p.matrix.rows + row);
    if constexpr (kGated) up_scale = scale_of_row(p.up, row), up_added = number_at<T>(p.up_bias, row);
  }
  __syncthreads();
  if (!writes) return;
  const float* place = sums + column * kTile + i % kRows;
  float total = 0, up = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    total += place[w * kTile * m];
    if constexpr (kGated) up += place[w * kTile * m + kRows];
  }
  total = total * scale + added;
  if constexpr (kGated)
    total = activated<ActivationKind::kSilu, T>(total) * (up * up_scale + up_added);
  else
    total = with_activation<T>(total, p.activation);
  static_cast<T*>(p.y)[column * p.matrix.rows + row] = narrowed<T>(total + kept);
}

// ---- the kernel

/// Where the copies of a lane are: the chunk that comes next.
template <WeightFormat format, bool kGated>
struct Copies {
  const SkinnyLinear& p;
  uint4* ring;       // [stage][warp][row][lane], of this lane
  uint32_t* scales;  // the same of int4
  int64_t tile, tiles;
  int turn = 0, turns, chunks, stage = 0, g, t;
  const char* codes[2];
  const uint32_t* from_scales[2];
  int chunks_of_group;

  __device__ __forceinline__ void begin_tile() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const PackedMatrix& matrix = kGated && r == 1 ? p.up : p.matrix;
      // Rows behind the last are read as the last, and not written.
      const int64_t row = kGated ? tile * (kTile / 2) + g : tile * kTile + g + 8 * r;
      const int64_t safe = row < matrix.rows ? row : matrix.rows - 1;
      codes[r] =
          static_cast<const char*>(matrix.codes) + safe * (matrix.columns / kColumns<format> * kChunkBytes) + t * 16;
      if constexpr (format == WeightFormat::kInt4)
        from_scales[r] = static_cast<const uint32_t*>(matrix.scales) + safe * (matrix.columns / matrix.group);
    }
  }

  /// Begins to copy one chunk, if one is left, and ends a set.
  __device__ __forceinline__ void next(int warp) {
    if (tile < tiles) {
      const int at = turn * kWarps + warp;
      if (at < chunks) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          begin_copy(ring + (stage * kWarps * 2 + r) * 32, codes[r] + at * kChunkBytes);
          if constexpr (format == WeightFormat::kInt4) {
            const auto place = static_cast<uint32_t>(__cvta_generic_to_shared(scales + (stage * kWarps * 2 + r) * 32));
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place),
                         "l"(from_scales[r] + (at >> chunks_of_group))
                         : "memory");
          }
        }
      }
      if (++turn == turns) {
        turn = 0;
        tile += gridDim.x;
        if (tile < tiles) begin_tile();
      }
    }
    end_copies();
    stage = stage + 1 == kStages<format> ? 0 : stage + 1;
  }
};

/// Asks for the first bytes of the tiles of this block, so that they are in the cache when the ring has room for them.
template <WeightFormat format, bool kGated>
__device__ __forceinline__ void ask_ahead(const SkinnyLinear& p, int64_t tiles) {
#if __CUDA_ARCH__ >= 900
  constexpr int kPiece = 16384, kRows = kGated ? kTile / 2 : kTile;
  const int64_t row_bytes = p.matrix.columns / kColumns<format> * kChunkBytes, of_tile = kRows * row_bytes;
  const int64_t all = p.matrix.rows * row_bytes;
  int64_t left = p.ahead_bytes;
  for (int64_t tile = blockIdx.x; tile < tiles && left > 0; tile += gridDim.x) {
    const int64_t begin = tile * of_tile, end = begin + of_tile < all ? begin + of_tile : all;
    for (int64_t at = begin + threadIdx.x * kPiece; at < end; at += 32 * kPiece) {
      const auto bytes = static_cast<uint32_t>(end - at < kPiece ? end - at : kPiece);
      for (int r = 0; r < (kGated ? 2 : 1); ++r)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                         static_cast<const char*>(r ? p.up.codes : p.matrix.codes) + at),
                     "r"(bytes)
                     : "memory");
    }
    left -= of_tile * (kGated ? 2 : 1);
  }
#endif
}

template <WeightFormat format, class T, bool kGated>
__global__ void __launch_bounds__(kThreads, 2) streamed_linear(const SkinnyLinear p) {
  let_next_start();
  extern __shared__ __align__(16) unsigned char memory[];
  const auto places = shared_places<format>(p);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const int chunks = static_cast<int>(p.matrix.columns) / kColumns<format>, turns = (chunks + kWarps - 1) / kWarps;
  constexpr int kRows = kGated ? kTile / 2 : kTile;
  const int64_t tiles = (p.matrix.rows + kRows - 1) / kRows;
  auto* ring = reinterpret_cast<uint4*>(memory) + warp * 64 + lane;
  auto* scales = reinterpret_cast<uint32_t*>(memory + places.scales) + warp * 64 + lane;
  auto* sums = reinterpret_cast<float*>(memory + places.sums);

  Copies<format, kGated> copies{p, ring, scales, static_cast<int64_t>(blockIdx.x), tiles};
  copies.turns = turns, copies.chunks = chunks, copies.g = g, copies.t = t;
  copies.chunks_of_group = p.group_shift;
  copies.begin_tile();
  if (!p.early_matrix) wait_for_previous();
#pragma unroll
  for (int i = 0; i < kStages<format> - 1; ++i) copies.next(warp);
  if (p.early_matrix && p.ahead_bytes > 0 && warp == 0) ask_ahead<format, kGated>(p, tiles);
  wait_for_previous();  // x is a result of the kernels before this one

  const bool has_x = g < p.m;
  const int column = has_x ? g : 0;
  T* rows = reinterpret_cast<T*>(memory + places.x);
  take_rows<T>(p, rows, reinterpret_cast<float*>(memory + places.slots));
  const T* x = rows + column * (static_cast<int>(p.matrix.columns) + kPadding) + t * (kColumns<format> / 4);

  int stage = 0, turn_of_sums = 0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float sum[2][4] = {};
    for (int turn = 0; turn < turns; ++turn) {
      await_copies<kStages<format> - 2>();
      const int chunk = turn * kWarps + warp;
      uint4 unit[2];
      uint32_t scale[2] = {};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        unit[r] = ring[(stage * kWarps * 2 + r) * 32];
        if constexpr (format == WeightFormat::kInt4) scale[r] = scales[(stage * kWarps * 2 + r) * 32];
      }
      copies.next(warp);
      stage = stage + 1 == kStages<format> ? 0 : stage + 1;
      if (chunk < chunks) add_chunk<format, T>(sum, unit, scale, x + chunk * kColumns<format>, has_x);
    }
    const int m = static_cast<int>(p.m);
    float* of_tile = sums + turn_of_sums * (kWarps * kTile * m);
    turn_of_sums ^= 1;  // so that one barrier a tile is enough
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (2 * t + i % 2 < m)
        of_tile[warp * (kTile * m) + (2 * t + i % 2) * kTile + g + i / 2 * 8] = sum[0][i] + sum[1][i];
    end_tile<T, kGated>(p, tile, of_tile);
  }
  await_copies<0>();
}

template <WeightFormat format, class T, bool kGated>
int launch_of(const SkinnyLinear& p, CUstream_st* stream) {
  const auto kernel = streamed_linear<format, T, kGated>;
  const auto places = shared_places<format>(p);
  int device = 0, processors = 0;
  if (const auto error = cudaGetDevice(&device)) return error;
  if (const auto error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) return error;
  if (const auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, places.bytes))
    return error;
  constexpr int kRows = kGated ? kTile / 2 : kTile;
  const auto tiles = (p.matrix.rows + kRows - 1) / kRows;
  const auto blocks = static_cast<unsigned>(tiles < processors ? tiles : processors);
  return launch_early(kernel, {blocks, kThreads, static_cast<size_t>(places.bytes)}, stream, p);
}

template <WeightFormat format, class T>
int launch_with(const SkinnyLinear& p, CUstream_st* stream) {
  return p.activation == RowActivation::kGatedSilu ? launch_of<format, T, true>(p, stream)
                                                   : launch_of<format, T, false>(p, stream);
}

template <class T>
int launch_in(const SkinnyLinear& p, CUstream_st* stream) {
  switch (p.matrix.format) {
    case WeightFormat::kPlain:
      return launch_with<WeightFormat::kPlain, T>(p, stream);
    case WeightFormat::kInt8:
      return launch_with<WeightFormat::kInt8, T>(p, stream);
    case WeightFormat::kFp8:
      return launch_with<WeightFormat::kFp8, T>(p, stream);
    case WeightFormat::kInt4:
      return launch_with<WeightFormat::kInt4, T>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

bool can_stream_linear(const SkinnyLinear& p) {
  const auto bytes = [&] {
    switch (p.matrix.format) {
      case WeightFormat::kInt4:
        return p.matrix.group % 128 == 0 ? shared_places<WeightFormat::kInt4>(p).bytes : -1;
      case WeightFormat::kNf4:
        return -1;
      default:
        return shared_places<WeightFormat::kInt8>(p).bytes;
    }
  }();
  int device = 0, most = 0;
  return bytes > 0 && cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess && bytes <= most;
}

int launch_streamed_linear(const SkinnyLinear& given, CUstream_st* stream) {
  if (given.m == 0 || given.matrix.rows == 0) return cudaSuccess;
  auto product = given;
  product.group_shift = 0;
  while ((128 << product.group_shift) < product.matrix.group) ++product.group_shift;
  return product.type == NumberType::kHalf ? launch_in<__half>(product, stream)
                                           : launch_in<__nv_bfloat16>(product, stream);
}

}  // namespace levin::kernels::detail
