// A product of some rows of x, more than skinny_linear.cu takes, with a packed matrix.
//
// A block has 128 rows of the matrix and up to 64 of x. Stages of 128 columns come through shared memory, several at a
// time. Warps take 32 rows of the matrix and half of the columns of a stage; numbers are decoded in registers, once for
// all rows of x. Which column is which k of the instruction is free as long as x has the same order (skinny_tiles.cuh):
// a lane takes 16 consecutive ones. Where there are few rows of the matrix, the blocks of a cluster share out the
// columns and add up in each other's shared memory, in the order of the columns: a row of the result does not depend on
// how many others there are.
#include <algorithm>

#include <cuda_runtime.h>

#include "levin/kernels/cluster.cuh"
#include "levin/kernels/early_start.cuh"
#include "levin/kernels/quantized/packed_dispatch.cuh"
#include "levin/kernels/quantized/skinny_tiles.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kStageColumns = 128, kWarpRows = 32;

template <WeightFormat format>
struct Stored {
  static constexpr bool kNibbles = format == WeightFormat::kInt4 || format == WeightFormat::kNf4;
  /// Packs of 16 bytes of a row in a stage.
  static constexpr int kPacks = kNibbles ? 4 : 8;
  /// What a lane has of a row: 16 columns.
  using Unit = std::conditional_t<kNibbles, uint2, uint4>;
  static constexpr size_t kTableBytes = format == WeightFormat::kNf4 ? 256 * 32 * sizeof(uint32_t) : 0;
};

/// Where pack `pack` of a row lies in it: lanes that read at once have other banks.
template <WeightFormat format>
__device__ __forceinline__ int matrix_place(int row, int pack) {
  return Stored<format>::kNibbles ? pack ^ (row & 2) : pack ^ ((row & 1) << 2);
}
__device__ __forceinline__ int x_place(int row, int pack) {
  return pack ^ (row & 1);
}

/// 16 bytes to shared memory, or zeros.
__device__ __forceinline__ void copy_pack(uint4* to, const void* from, bool there) {
  const auto place = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void close_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kOpen>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

__device__ __forceinline__ float load_from_block(const float* local, int block) {
  float value = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(place_in_block(local, block)) : "memory");
#endif
  return value;
}
__device__ __forceinline__ void sync_blocks(int blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) {
    sync_cluster();
    return;
  }
#endif
  __syncthreads();
}

/// How a kernel divides the work. Where x has few rows, blocks are small: fewer warps wait for each other.
template <WeightFormat format, int kXRows>
struct Stage {
  static constexpr int kBlockRows = kXRows == 16 ? 64 : 128;
  static constexpr int kThreads = kBlockRows / kWarpRows * 2 * 32;
  static constexpr int kMatrixPacks = kBlockRows * Stored<format>::kPacks, kXPacks = kXRows * 16;
  static constexpr size_t kBytes = (kMatrixPacks + kXPacks) * sizeof(uint4);
  /// Blocks that have room on a multiprocessor.
  static constexpr int kBlocks = kXRows == 16 ? (format == WeightFormat::kNf4 ? 3 : 4) : 2;
  static constexpr size_t kRoom = 220 * 1024 / kBlocks - Stored<format>::kTableBytes;
  static constexpr int kStages = std::min<int>(5, static_cast<int>(kRoom / kBytes));
  static_assert(kStages >= 3);
  static constexpr size_t kSumBytes = static_cast<size_t>(kXRows) * kBlockRows * sizeof(float);
  static constexpr size_t kSharedBytes = Stored<format>::kTableBytes + std::max(kStages * kBytes, kSumBytes);
};

template <WeightFormat format, class T, int kXRows>
__global__ void __launch_bounds__(Stage<format, kXRows>::kThreads, Stage<format, kXRows>::kBlocks)
    tile_linear(TileLinear p) {
  using S = Stage<format, kXRows>;
  using Unit = typename Stored<format>::Unit;
  constexpr bool kNibbles = Stored<format>::kNibbles;
  constexpr int kBlockRows = S::kBlockRows, kThreads = S::kThreads, kStages = S::kStages,
                kPacks = Stored<format>::kPacks, kTilesOfX = kXRows / 8;
  extern __shared__ uint4 shared[];
  const auto* table = reinterpret_cast<const uint32_t*>(shared) + threadIdx.x % 32;
  uint4* const stages = shared + Stored<format>::kTableBytes / sizeof(uint4);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int half = warp / (kBlockRows / kWarpRows), warp_row = warp % (kBlockRows / kWarpRows) * kWarpRows;
  const auto& matrix = p.matrix;
  const int rows = static_cast<int>(matrix.rows), columns = static_cast<int>(matrix.columns);
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int first_row = static_cast<int>(blockIdx.z) * kBlockRows, first_x = static_cast<int>(blockIdx.y) * kXRows;
  const int x_rows = min(kXRows, static_cast<int>(p.m) - first_x);
  const int chunks = (columns + kStageColumns - 1) / kStageColumns;
  const int begin = chunks * block / blocks, end = chunks * (block + 1) / blocks;
  const auto* codes = static_cast<const uint4*>(matrix.codes);
  const auto* x = static_cast<const uint4*>(p.x);

  // Packs that a thread copies: those of a row and of rows below it at equal steps. Rows behind the last are read
  // as the last, and not written; columns behind the last are zeros.
  constexpr int kMatrixStep = kThreads / kPacks, kXStep = kThreads / 16;
  constexpr int kMatrixCopies = kBlockRows / kMatrixStep, kXCopies = kXRows / kXStep;
  const int matrix_row = static_cast<int>(threadIdx.x) / kPacks, matrix_pack = static_cast<int>(threadIdx.x) % kPacks;
  const int x_row = static_cast<int>(threadIdx.x) / 16, x_pack = static_cast<int>(threadIdx.x) % 16;
  const auto matrix_packs = static_cast<uint32_t>(columns / (kStageColumns / kPacks)),
             x_packs = static_cast<uint32_t>(columns / 8);
  uint32_t matrix_from[kMatrixCopies], x_from[kXCopies];
#pragma unroll
  for (int i = 0; i < kMatrixCopies; ++i)
    matrix_from[i] = static_cast<uint32_t>(min(first_row + matrix_row + i * kMatrixStep, rows - 1)) * matrix_packs +
                     static_cast<uint32_t>(matrix_pack);
#pragma unroll
  for (int i = 0; i < kXCopies; ++i)
    x_from[i] =
        static_cast<uint32_t>(first_x + min(x_row + i * kXStep, x_rows - 1)) * x_packs + static_cast<uint32_t>(x_pack);
  uint4* const matrix_to = stages + matrix_row * kPacks + matrix_place<format>(matrix_row, matrix_pack);
  uint4* const x_to = stages + S::kMatrixPacks + x_row * 16 + x_place(x_row, x_pack);
  const auto load_matrix = [&](int stage, int chunk) {
    const bool there = chunk * kStageColumns + matrix_pack * (kStageColumns / kPacks) < columns;
    uint4* to = matrix_to + stage * (S::kMatrixPacks + S::kXPacks);
#pragma unroll
    for (int i = 0; i < kMatrixCopies; ++i)
      copy_pack(to + i * kMatrixStep * kPacks,
                codes + (there ? matrix_from[i] + static_cast<uint32_t>(chunk * kPacks) : 0), there);
  };
  const auto load_x = [&](int stage, int chunk) {
    const bool there = chunk * kStageColumns + x_pack * 8 < columns;
    uint4* to = x_to + stage * (S::kMatrixPacks + S::kXPacks);
#pragma unroll
    for (int i = 0; i < kXCopies; ++i)
      copy_pack(to + i * kXStep * 16, x + (there ? x_from[i] + static_cast<uint32_t>(chunk * 16) : 0), there);
  };

  let_next_start();
  if (!p.early_matrix) wait_for_previous();
  if constexpr (format == WeightFormat::kNf4) {
    auto* to = reinterpret_cast<uint32_t*>(shared);
    for (int i = warp; i < 256; i += kThreads / 32)
      to[i * 32 + lane] = Pairs<T>::pack(kNf4OnDevice[i >> 4], kNf4OnDevice[i & 15]);
  }
  // Of x nothing may be read before wait_for_previous; the matrix of the first stages is on its way by then.
  for (int i = 0; i < kStages - 1; ++i)
    if (begin + i < end) load_matrix(i, begin + i);
  wait_for_previous();
  for (int i = 0; i < kStages - 1; ++i) {
    if (begin + i < end) load_x(i, begin + i);
    close_copies();
  }

  // Scales of the rows of a lane, of the group that the half of a stage is in.
  const int units = columns / static_cast<int>(kPackedGroup);
  const auto groups = static_cast<uint32_t>(units >> p.group_shift);
  uint32_t next_scale[4] = {}, scales_of[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    scales_of[i] = static_cast<uint32_t>(min(first_row + warp_row + g + 8 * i, rows - 1)) * groups;
  const auto load_scales = [&](int chunk) {
    const auto unit = static_cast<uint32_t>(min(chunk * 2 + half, units - 1) >> p.group_shift);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (format == WeightFormat::kNf4)
        next_scale[i] = __float_as_uint(nf4_scale(matrix, scales_of[i] + unit));
      else
        next_scale[i] = __ldg(static_cast<const uint32_t*>(matrix.scales) + scales_of[i] + unit);
    }
  };
  if constexpr (kNibbles)
    if (begin < end) load_scales(begin);

  float sum[2][kTilesOfX][4] = {};
  int stage = 0;
  for (int chunk = begin; chunk < end; ++chunk) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    // What was read last makes room for what comes.
    const int ahead = chunk + kStages - 1, free_stage = stage == 0 ? kStages - 1 : stage - 1;
    if (ahead < end) load_matrix(free_stage, ahead), load_x(free_stage, ahead);
    close_copies();
    const uint4* of_matrix = stages + stage * (S::kMatrixPacks + S::kXPacks);
    const uint4* of_x = of_matrix + S::kMatrixPacks;
    float scale[4];
    uint32_t a[2][2][8];  // tile, upper and lower row, pairs of columns
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t base = 0;
      if constexpr (format == WeightFormat::kInt4) {
        const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&next_scale[i]));
        scale[i] = pair.x;
        base = Pairs<T>::pack(pair.y + Pairs<T>::kNibbleValue, pair.y + Pairs<T>::kNibbleValue);
      } else if constexpr (format == WeightFormat::kNf4) {
        scale[i] = __uint_as_float(next_scale[i]);
      }
      const int row = warp_row + g + 8 * i;
      const auto* of_row = of_matrix + row * kPacks;
      Unit unit;
      if constexpr (kNibbles)
        unit = reinterpret_cast<const uint2*>(of_row + matrix_place<format>(row, half * 2 + t / 2))[t % 2];
      else
        unit = of_row[matrix_place<format>(row, half * 4 + t)];
      decode<format, T>(unit, table, base, a[i / 2][i % 2]);
    }
    if constexpr (kNibbles)
      if (chunk + 1 < end) load_scales(chunk + 1);
        // Two tiles of x at once: a product waits for the one before it of the same sums.
#pragma unroll
    for (int n = 0; n < kTilesOfX; n += 2) {
      uint32_t b[2][8];
#pragma unroll
      for (int of = 0; of < 2; ++of)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = (n + of) * 8 + g;
          const uint4 pack = of_x[row * 16 + x_place(row, half * 8 + t * 2 + i)];
          b[of][4 * i] = pack.x, b[of][4 * i + 1] = pack.y, b[of][4 * i + 2] = pack.z, b[of][4 * i + 3] = pack.w;
        }
      float products[2][2][4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int of = 0; of < 2; ++of)
#pragma unroll
          for (int tile = 0; tile < 2; ++tile) {
            const uint32_t numbers[4] = {a[tile][0][2 * j], a[tile][1][2 * j], a[tile][0][2 * j + 1],
                                         a[tile][1][2 * j + 1]};
            float(&to)[4] = kNibbles ? products[of][tile] : sum[tile][n + of];
            if (kNibbles && j == 0)
              start_tile(to, numbers, b[of][0], b[of][1], T());
            else
              multiply_tile(to, numbers, b[of][2 * j], b[of][2 * j + 1], T());
          }
      if constexpr (kNibbles)
#pragma unroll
        for (int of = 0; of < 2; ++of)
#pragma unroll
          for (int tile = 0; tile < 2; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[tile][n + of][i] += scale[tile * 2 + i / 2] * products[of][tile][i];
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }

  // The halves of the columns add up, then the blocks of the cluster.
  wait_for_copies<0>();
  __syncthreads();
  auto* sums = reinterpret_cast<float*>(stages);
  const auto each_sum = [&](auto&& use) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int n = 0; n < kTilesOfX; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          use(sums[(n * 8 + 2 * t + i % 2) * kBlockRows + warp_row + tile * 16 + g + 8 * (i / 2)], sum[tile][n][i]);
  };
  if (half == 1) each_sum([](float& place, float value) { place = value; });
  __syncthreads();
  if (half == 0) each_sum([](float& place, float value) { place = value + place; });
  sync_blocks(blocks);
  for (int i = block * kThreads + static_cast<int>(threadIdx.x); i < x_rows * kBlockRows; i += blocks * kThreads) {
    float total = 0;
    if (blocks == 1)
      total = sums[i];
    else
      for (int other = 0; other < blocks; ++other) total += load_from_block(sums + i, other);
    const int row = first_row + i % kBlockRows;
    if (row >= rows) continue;
    if constexpr (!kNibbles) total *= __ldg(static_cast<const float*>(matrix.scales) + row);
    if constexpr (format == WeightFormat::kInt8) total *= kInt8Unit;
    if (p.bias) total += widened(static_cast<const T*>(p.bias)[row]);
    static_cast<T*>(p.y)[static_cast<int64_t>(first_x + i / kBlockRows) * rows + row] = narrowed<T>(total);
  }
  if (blocks > 1) sync_blocks(blocks);  // until nobody reads here any more
}

/// Blocks that share the columns of a row: as few as keep all multiprocessors busy, each of which has room for two. The
/// same for any number of rows of x, so that the order of sums is.
unsigned sharing_blocks(int64_t rows, int64_t chunks, int64_t processors) {
  if (!can_start_early()) return 1;
  const int64_t row_blocks = (rows + 127) / 128, places = 2 * processors;
  unsigned best = 1;
  for (unsigned blocks = 2; blocks <= 8 && chunks >= 3 * static_cast<int64_t>(blocks); blocks *= 2) {
    const auto waves = [&](unsigned n) { return (row_blocks * n + places - 1) / places; };
    if (waves(blocks) * best < waves(best) * blocks) best = blocks;
  }
  return best;
}

template <WeightFormat format, class T, int kXRows>
int launch_with(const TileLinear& p, CUstream_st* stream) {
  using S = Stage<format, kXRows>;
  const auto kernel = tile_linear<format, T, kXRows>;
  if (const auto error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(S::kSharedBytes)))
    return error;
  const auto row_blocks = (p.matrix.rows + S::kBlockRows - 1) / S::kBlockRows;
  const auto chunks = (p.matrix.columns + kStageColumns - 1) / kStageColumns;
  const auto blocks = sharing_blocks(p.matrix.rows, chunks, p.processors);
  const dim3 grid(blocks, static_cast<unsigned>((p.m + kXRows - 1) / kXRows), static_cast<unsigned>(row_blocks));
  return launch_early(kernel, {.grid = grid, .block = S::kThreads, .shared_bytes = S::kSharedBytes, .cluster = blocks},
                      stream, p);
}

template <WeightFormat format, class T>
int launch_of(const TileLinear& p, CUstream_st* stream) {
  if (p.m <= 16) return launch_with<format, T, 16>(p, stream);
  if (p.m <= 32) return launch_with<format, T, 32>(p, stream);
  return launch_with<format, T, 64>(p, stream);
}

}  // namespace

int launch_tile_linear(const TileLinear& product, CUstream_st* stream) {
  return launch_packed(product, [&](const TileLinear& p, auto format, auto number) -> int {
    if constexpr (decltype(format)::value == WeightFormat::kPlain)
      return cudaErrorInvalidValue;  // cuBLAS has these
    else
      return launch_of<decltype(format)::value, decltype(number)>(p, stream);
  });
}

}  // namespace levin::kernels::detail
