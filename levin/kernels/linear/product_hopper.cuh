#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "levin/kernels/cluster.cuh"
#include "levin/kernels/early_start.cuh"
#include "levin/kernels/hopper.cuh"

/// Products x w^T of 16-bit matrices, x [M, K] and w [N, K], on compute capability 9.0, for what cuBLASLt cannot do
/// with a result before it is in memory.
///
/// A block multiplies tiles of 128 x 256 one after the other: one warp loads, two warpgroups multiply, and three warps
/// finish a tile while the next one is multiplied. Two blocks of a cluster have the same rows of w, and each loads half
/// of them for both.
namespace levin::kernels::detail {

inline constexpr int kTileRows = 128, kTileColumns = 256, kTileDepth = 64, kTileStages = 3;
inline constexpr int kTileThreads = 384, kTileFinishers = 3;
/// Rows that one warp finishes, a row for each lane.
inline constexpr int kPartRows = 32;

struct ProductSizes {
  int rows = 0, columns = 0, depth = 0;  // M, N, K
  int down = 0, across = 0;              // pairs of tiles, and tiles, that they take
};
inline ProductSizes product_sizes(int rows, int columns, int depth) {
  return {rows, columns, depth, (rows + 2 * kTileRows - 1) / (2 * kTileRows),
          (columns + kTileColumns - 1) / kTileColumns};
}

/// 32 rows of a tile in shared memory, four boxes of 64 columns.
struct TilePart {
  uint8_t* numbers;  // of the row of this lane
  uint32_t shared;   // of all rows
  int row, column;   // where they begin in the result
  int lane;

  /// Numbers 8 * i to 8 * i + 7 of the row of this lane.
  __device__ __forceinline__ uint4& pack(int i) const {
    return *reinterpret_cast<uint4*>(numbers + (i >> 3) * kBox + (((i & 7) ^ (lane & 7)) << 4));
  }
  __device__ __forceinline__ uint16_t& number(int i) const { return reinterpret_cast<uint16_t*>(&pack(i >> 3))[i & 7]; }
  /// All lanes have written box i. Then it can go to memory.
  __device__ __forceinline__ void store(const CUtensorMap& map, int i) const {
    fence_async();
    __syncwarp();
    if (lane != 0) return;
    store_box(map, shared + i * kBox, row, column + 64 * i);
    commit_stores();
  }

  static constexpr int kBoxes = kTileColumns / 64, kBox = 64 * 128;  // bytes
};

/// Where things are in the shared memory of a block.
struct ProductMemory {
  uint32_t base;
  uint8_t* generic;

  static constexpr int kRows = kTileRows * kTileDepth * 2, kWeights = kTileColumns * kTileDepth * 2;
  static constexpr int kStage = kRows + kWeights, kResults = kTileStages * kStage, kHalf = 64 * kTileColumns * 2;
  static constexpr int kBarriers = kResults + 2 * kHalf, kBytes = kBarriers + 128 + 1024;  // to align it

  __device__ explicit ProductMemory(uint8_t* raw) : base((shared_address(raw) + 1023) & ~1023u) {
    generic = raw + (base - shared_address(raw));
  }
  __device__ uint32_t stage(int s) const { return base + s * kStage; }
  __device__ uint32_t half(int group) const { return base + kResults + group * kHalf; }
  __device__ uint32_t loaded(int s) const { return base + kBarriers + 8 * s; }
  __device__ uint32_t used(int s) const { return base + kBarriers + 32 + 8 * s; }
  __device__ uint32_t staged(int group) const { return base + kBarriers + 64 + 8 * group; }
  __device__ uint32_t finished(int group) const { return base + kBarriers + 80 + 8 * group; }
};
static_assert(ProductMemory::kBytes <= 232448);

/// The tiles of a block. Rows first: those of x, which are fewer, stay in the cache.
struct TilesOfBlock {
  const ProductSizes& sizes;
  int tile = static_cast<int>(blockIdx.x) / 2;

  __device__ bool any() const { return tile < sizes.down * sizes.across; }
  __device__ void next() { tile += static_cast<int>(gridDim.x) / 2; }
  __device__ int row(int rank) const { return (tile % sizes.down * 2 + rank) * kTileRows; }
  __device__ int column() const { return tile / sizes.down * kTileColumns; }
};

/// Which stage comes next, and the phase of its barrier.
struct StageCounter {
  int stage = 0, phase;
  __device__ void next() {
    if (++stage == kTileStages) stage = 0, phase ^= 1;
  }
};

inline __device__ void load_tiles(const ProductMemory& memory, const ProductSizes& sizes, int rank,
                                  const CUtensorMap& x, const CUtensorMap& w) {
  constexpr int kHalfOfWeights = ProductMemory::kWeights / 2;
  StageCounter at{0, 1};
  for (TilesOfBlock tiles{sizes}; tiles.any(); tiles.next())
    for (int k = 0; k < sizes.depth; k += kTileDepth, at.next()) {
      const uint32_t to = memory.stage(at.stage), loaded = memory.loaded(at.stage);
      wait_for_barrier(memory.used(at.stage), at.phase);
      expect_bytes(loaded, ProductMemory::kStage);
      load_box(to, x, loaded, tiles.row(rank), k);
      load_box_for(0b11, to + ProductMemory::kRows + rank * kHalfOfWeights, w, loaded,
                   tiles.column() + rank * (kTileColumns / 2), k);
    }
}

/// 64 x 256 numbers of the tile, ready to be finished.
template <class Finish>
__device__ __forceinline__ void stage_tile(uint32_t to, const float (&d)[128], const Finish& finish,
                                           const typename Finish::Row& upper, const typename Finish::Row& lower,
                                           int column, int warp, int lane) {
  const int row = 16 * warp + (lane & 15), part = lane >> 4, first = column + 2 * (lane & 3);
#pragma unroll
  for (int j = 0; j < 32; j += 2)
    store_matrices(to + row * 128 + (j / 8) * TilePart::kBox + (((j % 8 + part) ^ (row & 7)) << 4),
                   finish.staged(upper, d[4 * j], d[4 * j + 1], first + 8 * j),
                   finish.staged(lower, d[4 * j + 2], d[4 * j + 3], first + 8 * j),
                   finish.staged(upper, d[4 * j + 4], d[4 * j + 5], first + 8 * j + 8),
                   finish.staged(lower, d[4 * j + 6], d[4 * j + 7], first + 8 * j + 8));
}

template <class Finish>
__device__ __forceinline__ void multiply_tiles(const ProductMemory& memory, const ProductSizes& sizes, int rank,
                                               const Finish& finish) {
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128 - 1, warp = thread / 32 % 4,
            lane = thread % 32;
  float d[128];
  StageCounter at{0, 0};
  int phase = 1;
  for (TilesOfBlock tiles{sizes}; tiles.any(); tiles.next(), phase ^= 1) {
    const int row = tiles.row(rank) + 64 * group + 16 * warp + lane / 4;
    const auto upper = finish.row(row), lower = finish.row(row + 8);
    int previous = -1;
    // Both blocks of the cluster load into this stage.
    const auto release = [&] {
      if (lane < 2) arrive_at_block(memory.used(previous), lane);
    };
    for (int k = 0; k < sizes.depth; k += kTileDepth, at.next()) {
      wait_for_barrier(memory.loaded(at.stage), at.phase);
      const uint32_t stage = memory.stage(at.stage);
      const uint64_t a = matrix_at(same_in_warp(stage + group * 8192)),
                     b = matrix_at(same_in_warp(stage + ProductMemory::kRows));
      begin_products();
#pragma unroll
      for (int i = 0; i < kTileDepth / 16; ++i)
        product_64x256<typename Finish::Number>(d, a + matrix_offset(32 * i), b + matrix_offset(32 * i),
                                                k > 0 || i > 0);
      commit_products();
      if (previous >= 0) {
        wait_for_products<1>();
        release();
      }
      previous = at.stage;
    }
    wait_for_products<0>();
    release();
    wait_for_barrier(memory.finished(group), phase);
    stage_tile(memory.half(group), d, finish, upper, lower, tiles.column(), warp, lane);
    fence_async();
    arrive_at(memory.staged(group));
  }
}

template <class Finish>
__device__ __forceinline__ void finish_tiles(const ProductMemory& memory, const ProductSizes& sizes, int rank,
                                             const Finish& finish) {
  const int thread = static_cast<int>(threadIdx.x), own = thread / 32 - 1, lane = thread % 32;
  int turn = 0, phase = 0;  // the warps take turns
  for (TilesOfBlock tiles{sizes}; tiles.any(); tiles.next(), phase ^= 1)
#pragma unroll 1
    for (int part = 0; part < kTileRows / kPartRows; ++part, turn = turn + 1 == kTileFinishers ? 0 : turn + 1) {
      if (turn != own) continue;
      const int group = part / 2, offset = part % 2 * kPartRows * 128;
      wait_for_barrier(memory.staged(group), phase);
      const uint32_t shared = memory.half(group) + offset;
      finish(TilePart{memory.generic + (shared - memory.base) + lane * 128, shared, tiles.row(rank) + part * kPartRows,
                      tiles.column(), lane});
      if (lane == 0) {
        wait_until_read();
        arrive_at(memory.finished(group));
      }
      __syncwarp();
    }
  if (lane == 0) wait_until_stored();
}

/// Finish:
///   Number                                 of x and w
///   bool idle() const                      nothing is to be done; known when earlier kernels have ended
///   Row row(int row) const                 what staged needs to know about a row
///   uint32_t staged(row, a, b, column)     two numbers of the product, as they lie in shared memory
///   void operator()(const TilePart&)       a warp, with 32 rows of the result
template <class Finish>
__global__ void __launch_bounds__(kTileThreads, 1)
    wgmma_product(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w,
                  const __grid_constant__ ProductSizes sizes, const __grid_constant__ Finish finish) {
  extern __shared__ uint8_t raw[];
  const ProductMemory memory(raw);
  const int warp = static_cast<int>(threadIdx.x) / 32, rank = block_of_cluster();
  let_next_start();
  wait_for_previous();
  if (finish.idle()) return;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kTileStages; ++s) init_barrier(memory.loaded(s), 1), init_barrier(memory.used(s), 16);
    for (int g = 0; g < 2; ++g) init_barrier(memory.staged(g), 128), init_barrier(memory.finished(g), 2);
    fence_barriers();
  }
  __syncthreads();
  sync_cluster();
  if (warp < 4) {
    give_registers<136>();
    if (warp > 0)
      finish_tiles(memory, sizes, rank, finish);
    else if (threadIdx.x == 0)
      load_tiles(memory, sizes, rank, x, w);
  } else {
    take_registers<184>();
    multiply_tiles(memory, sizes, rank, finish);
  }
  __syncwarp();
  sync_cluster();  // the other block may still read from here
}

/// x and w are multiples of 16 bytes, as are their rows. `processors`: of the device.
template <class Finish>
cudaError_t launch_product(const void* x, const void* w, const ProductSizes& sizes, const Finish& finish,
                           int processors, cudaStream_t stream) {
  constexpr bool kHalf = kIsHalf<typename Finish::Number>;
  CUtensorMap of_x, of_w;
  for (const auto error : {allow_shared_memory(wgmma_product<Finish>, ProductMemory::kBytes),
                           matrix_map(of_x, x, kHalf, sizes.rows, sizes.depth, kTileRows),
                           matrix_map(of_w, w, kHalf, sizes.columns, sizes.depth, kTileColumns / 2)})
    if (error != cudaSuccess) return error;
  const LaunchShape shape{.grid = static_cast<unsigned>(processors / 2 * 2),
                          .block = kTileThreads,
                          .shared_bytes = ProductMemory::kBytes,
                          .early = true,
                          .cluster = 2};
  return launch_early(wgmma_product<Finish>, shape, stream, of_x, of_w, sizes, finish);
}

}  // namespace levin::kernels::detail
