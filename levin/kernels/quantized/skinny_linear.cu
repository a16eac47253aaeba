// A product of few rows with a packed matrix. It reads the matrix once, so its time is that of the memory.
//
// Tensor cores multiply tiles of 16 rows of the matrix with all rows of x (their 8 columns). A warp holds a tile as the
// instruction wants it: lane 4 g + t has numbers of rows g and g + 8. Which column of the matrix is which k of the
// instruction is free as long as x has the same order, so every lane takes consecutive columns, in one load. The warps
// of a block share out the columns and add up in shared memory.
#include <cuda_runtime.h>

#include "levin/kernels/activation_device.cuh"
#include "levin/kernels/early_start.cuh"
#include "levin/kernels/packs.cuh"
#include "levin/kernels/quantized/packed_dispatch.cuh"
#include "levin/kernels/quantized/skinny_tiles.cuh"

namespace levin::kernels::detail {
namespace {

template <class T>
__device__ __forceinline__ float with_activation(float x, RowActivation activation) {
  switch (activation) {
#define LEVIN_CASE(name)    \
  case RowActivation::name: \
    return activated<ActivationKind::name, T>(x);
    LEVIN_ACTIVATIONS(LEVIN_CASE)
#undef LEVIN_CASE
    case RowActivation::kNone:
    case RowActivation::kGatedSilu:  // of two products, elsewhere
      return x;
  }
  return x;
}

/// What a sum of a row is multiplied by, and what is added.
template <WeightFormat format, class T>
__device__ __forceinline__ float2 scale_and_bias(const PackedMatrix& matrix, const void* bias, int64_t row) {
  float scale = 1;
  if (format == WeightFormat::kInt8 || format == WeightFormat::kFp8)
    scale = __ldg(static_cast<const float*>(matrix.scales) + row) * (format == WeightFormat::kInt8 ? kInt8Unit : 1);
  return {scale, bias ? static_cast<float>(static_cast<const T*>(bias)[row]) : 0.0f};
}

/// How a kernel divides the work. kTiles: of a block. kUnroll: chunks that a warp loads at once; twice as many are on
/// their way before x is there. kBlocks: that have registers on a multiprocessor; 0: as many as there are.
template <int kWarpsOf, int kTilesOf, int kUnrollOf, int kBlocksOf = 0>
struct Division {
  static constexpr int kWarps = kWarpsOf, kTiles = kTilesOf, kUnroll = kUnrollOf, kBlocks = kBlocksOf;
};

/// The sum of eight numbers.
template <class T>
__device__ __forceinline__ float sum_pack(uint4 pack) {
  const T* numbers = reinterpret_cast<const T*>(&pack);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += widened(numbers[i]);
  return sum;
}

/// What is kept of x in shared memory: its one row. Every warp copies the columns that it takes itself, all at once:
/// one wait for the memory rather than one for each chunk. kRun: packs of 16 bytes of the columns of a turn. kSummed:
/// of each 128 columns the sum goes to `sums`.
template <int kWarps, int kRun, bool kSummed, class T>
__device__ __forceinline__ const T* copied_x(const void* x, int packs, uint4* to, float* sums, int warp, int lane) {
  constexpr int kAtOnce = 4, kSummedPacks = 16;
  const auto* from = static_cast<const uint4*>(x);
  const auto pack_of = [&](int i, int of_lane) {
    const int of_warp = i * 32 + of_lane;
    return (warp + of_warp / kRun * kWarps) * kRun + of_warp % kRun;
  };
  for (int i = 0; pack_of(i, 0) < packs; i += kAtOnce) {
    uint4 got[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      got[k] = make_uint4(0, 0, 0, 0);
      if (pack_of(i + k, lane) < packs) got[k] = from[pack_of(i + k, lane)];
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int pack = pack_of(i + k, lane);
      if (pack < packs) to[pack] = got[k];
      if constexpr (kSummed) {
        float sum = sum_pack<T>(got[k]);
#pragma unroll
        for (int other = kSummedPacks / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
        if (pack < packs && pack % kSummedPacks == 0) sums[pack / kSummedPacks] = sum;
      }
    }
  }
  __syncwarp();
  return reinterpret_cast<const T*>(to);
}

/// What a thread has of the squares of a row of x, from number `first` of its own on.
template <int kThreads>
__device__ __forceinline__ float own_squares(const SkinnyLinear& p, int row, int first) {
  float sum = 0;
  for (int i = first * kThreads + static_cast<int>(threadIdx.x); i < p.squares_count; i += kThreads)
    sum += __ldg(p.squares + row * p.squares_count + i);
  return sum;
}

/// kWhole: of int4, a chunk has one group. kGated: rows 8 to 15 of a tile are those of the second matrix that go with
/// rows 0 to 7. kOne: x has one row.
template <WeightFormat format, class T, class D, bool kWhole, bool kGated, bool kOne>
__global__ void __launch_bounds__(D::kWarps * 32, D::kBlocks) skinny_linear(SkinnyLinear p) {
  let_next_start();
  using L = Layout<format>;
  constexpr int kWarps = D::kWarps, kTiles = D::kTiles, kUnroll = D::kUnroll, kStep = kGated ? kTile / 2 : kTile;
  constexpr int kRows = kTiles * kStep, kColumns = kOne ? 1 : 8;  // of the result
  extern __shared__ uint4 shared[];
  __shared__ float sums[kWarps][kColumns][kTiles * kTile];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const auto& matrix = p.matrix;
  const auto& second = kGated ? p.up : p.matrix;
  const int rows = static_cast<int>(matrix.rows), columns = static_cast<int>(matrix.columns);
  const int first = static_cast<int>(blockIdx.x) * kRows, chunks = (columns + L::kColumns - 1) / L::kColumns;
  const auto row_packs = static_cast<uint32_t>(columns / (L::kColumns / 4));  // of 16 bytes
  const int units = columns / static_cast<int>(kPackedGroup);
  const auto groups = static_cast<uint32_t>(units >> p.group_shift);
  const uint4* codes[2] = {static_cast<const uint4*>(matrix.codes) + t, static_cast<const uint4*>(second.codes) + t};
  // Rows behind the last are read as the last, and not written.
  uint32_t row_of[kTiles][2];
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      row_of[j][r] = static_cast<uint32_t>(min(first + j * kStep + g + (kGated ? 0 : 8 * r), rows - 1));
  const auto is_whole = [&](int chunk) { return kWhole || L::kParts == 0 || (chunk + 1) * L::kColumns <= columns; };

  using Chunk = Loaded<format, kWhole, kTiles>;
  const auto load_scales = [&](Chunk& to, int chunk, int j, int r) {
#pragma unroll
    for (int part = 0; part < Chunk::kScales; ++part) {
      // The last chunk may have one part.
      const int unit = kWhole ? chunk * L::kParts : min(chunk * L::kParts + part, units - 1);
      const auto i = row_of[j][r] * groups + static_cast<uint32_t>(unit >> p.group_shift);
      const auto& of = r == 0 ? matrix : second;
      if constexpr (format == WeightFormat::kNf4)
        to.scale[j][part][r] = __float_as_uint(nf4_scale(of, i));
      else
        to.scale[j][part][r] = __ldg(static_cast<const uint32_t*>(of.scales) + i);
    }
  };
  const auto load = [&](Chunk(&to)[kUnroll], int run) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (run + u < chunks) {
        const bool there = is_whole(run + u) || t < 2;
#pragma unroll
        for (int j = 0; j < kTiles; ++j)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const auto* from = codes[r] + (row_of[j][r] * row_packs + static_cast<uint32_t>(run + u) * 4);
            to[u].unit[j][r] = there ? streamed(from) : make_uint4(0, 0, 0, 0);
            if constexpr (L::kParts > 0) load_scales(to[u], run + u, j, r);
          }
      }
  };

  Chunk now[kUnroll], next[kUnroll];
  constexpr int kTurn = kWarps * kUnroll;
  int run = warp * kUnroll;
  if (!p.early_matrix) wait_for_previous();
  load(now, run);
  load(next, run + kTurn);
  // A thread for each number; what does not depend on x is on its way with the matrix.
  static_assert(kWarps * 32 >= kRows * kColumns);
  const int row_of_block = static_cast<int>(threadIdx.x) % kRows, column = static_cast<int>(threadIdx.x) / kRows;
  const int row = first + row_of_block;
  const int64_t at = static_cast<int64_t>(column) * rows + row;
  const bool writes = column < (kOne ? 1 : static_cast<int>(p.m)) && row < rows;
  float2 of_row = {1, 0}, of_up = {1, 0};
  float kept = 0, norm_weight = 0;
  if (writes) {
    of_row = scale_and_bias<format, T>(matrix, p.bias, row);
    if constexpr (kGated) of_up = scale_and_bias<format, T>(second, p.up_bias, row);
    if (!kGated && p.norm_weight) norm_weight = static_cast<float>(static_cast<const T*>(p.norm_weight)[row]);
  }
  if constexpr (format == WeightFormat::kNf4) {
    // A copy for every lane: each reads its own bank.
    auto* table = reinterpret_cast<uint32_t*>(shared);
    for (int i = warp; i < 256; i += kWarps)
      table[i * 32 + lane] = Pairs<T>::pack(kNf4OnDevice[i >> 4], kNf4OnDevice[i & 15]);
    __syncthreads();
  }
  wait_for_previous();  // x is a result of the kernels before this one
  if (writes && p.residual) kept = static_cast<float>(static_cast<const T*>(p.residual)[at]);
  // One number of each thread is on its way with x; no instruction waits for it here.
  float squares = 0;
  if (kOne && p.squares && static_cast<int>(threadIdx.x) < p.squares_count) squares = __ldg(p.squares + threadIdx.x);
  const bool has_x = kOne ? g == 0 : g < p.m;
  const T* x = nullptr;
  auto* sums_of_x = reinterpret_cast<float*>(shared + columns / 8);
  if constexpr (kOne)
    x = copied_x<kWarps, kUnroll * L::kColumns / 8, kWhole, T>(p.x, columns / 8, shared, sums_of_x, warp, lane);
  else
    x = static_cast<const T*>(p.x) + static_cast<int64_t>(has_x ? g : 0) * columns;
  float sum[kTiles][kWhole ? kResults<kOne> : 4] = {};
  const auto add = [&](const Chunk(&of)[kUnroll], int from) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (from + u < chunks) {
        const auto* of_chunk = x + (from + u) * L::kColumns;
        if constexpr (L::kParts == 0)
          add_chunk<format, T>(sum, of[u], of_chunk, has_x, t);
        else if constexpr (kWhole)
          add_group<T, kTiles, kOne>(sum, of[u], of_chunk, has_x, t, kOne ? sums_of_x[from + u] : 0.0f);
        else
          add_groups<format, T>(sum, of[u], of_chunk, has_x, t, reinterpret_cast<const uint32_t*>(shared) + lane,
                                is_whole(from + u));
      }
  };
  // Two sets of registers in turns: what is added up makes room for what comes after the other.
  for (; run < chunks; run += 2 * kTurn) {
    add(now, run);
    load(now, run + 2 * kTurn);
    add(next, run + kTurn);
    load(next, run + 3 * kTurn);
  }
  constexpr int kEach = kWhole && kOne ? 1 : 2;
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < (kOne ? 1 : 2); ++c)
        if (!kOne || t == 0) sums[warp][2 * t + c][j * kTile + 8 * r + g] = sum[j][r * kEach + c];
  // Row by row in the same order, whether there is one or several.
  __shared__ float warp_squares[kColumns][kWarps];
  if (p.squares)
    for (int r = 0; r < (kOne ? 1 : static_cast<int>(p.m)); ++r)
      warp_squares[r][warp] = warp_sum(squares + own_squares<kWarps * 32>(p, r, kOne ? 1 : 0));
  __syncthreads();
  if (static_cast<int>(threadIdx.x) - lane >= kRows * kColumns) return;
  float y = 0;
  if (writes) {
    const int place = kGated ? row_of_block / kStep * kTile + row_of_block % kStep : row_of_block;
    float total = 0, up = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      total += sums[w][column][place];
      if constexpr (kGated) up += sums[w][column][place + kStep];
    }
    if (p.squares) {
      float of_x = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) of_x += warp_squares[column][w];
      const float rstd = rsqrtf(of_x / static_cast<float>(columns) + p.eps);
      total *= rstd, up *= rstd;
    }
    total = total * of_row.x + of_row.y;
    if constexpr (kGated)
      total = activated<ActivationKind::kSilu, T>(total) * (up * of_up.x + of_up.y);
    else
      total = with_activation<T>(total, p.activation);
    const T rounded = static_cast<T>(total + kept);
    static_cast<T*>(p.y)[at] = rounded;
    y = static_cast<float>(rounded);
  }
  if (kGated || !p.norm_weight) return;
  // The statistics are those of the result as it is kept.
  float square = y * y;
#pragma unroll
  for (int other = kSquaredRows / 2; other > 0; other /= 2) square += __shfl_xor_sync(0xffffffffu, square, other);
  if (!writes) return;
  static_cast<T*>(p.weighted)[at] = static_cast<T>(y * norm_weight);
  constexpr auto kMore = kSquaredRows - 1;
  if (row % kSquaredRows == 0) p.squares_out[column * ((rows + kMore) / kSquaredRows) + row / kSquaredRows] = square;
}

/// Shared memory that a block has without asking for more.
constexpr int64_t kSharedBytes = 48 * 1024, kSumBytes = 8 * 1024;

template <WeightFormat format, class T, bool kWhole, bool kGated, bool kOne>
int launch_with(const SkinnyLinear& p, CUstream_st* stream) {
  const auto launch = [&](auto division) {
    using D = decltype(division);
    constexpr int kRows = D::kTiles * (kGated ? kTile / 2 : kTile);
    const auto blocks = static_cast<unsigned>((p.matrix.rows + kRows - 1) / kRows);
    const size_t table = format == WeightFormat::kNf4 ? 256 * 32 * sizeof(uint32_t) : 0;
    const size_t of_x = static_cast<size_t>(p.matrix.columns) * sizeof(T);
    const size_t shared = kOne ? of_x + (kWhole ? of_x / (128 * sizeof(T)) * sizeof(float) : 0) : table;
    return launch_early(skinny_linear<format, T, D, kWhole, kGated, kOne>, {blocks, D::kWarps * 32, shared}, stream, p);
  };
  // Measured on an H200 with the products of a Llama-7B (docs/quantization.md). Where there are few tiles, more warps
  // share the columns of one.
  [[maybe_unused]] const bool few = !kGated && p.matrix.rows < 512 * kTile;
  if constexpr (format == WeightFormat::kPlain)
    return launch(Division<16, 1, 2, 2>());
  else if constexpr (kOne)
    return few ? launch(Division<16, 1, 1, 2>()) : launch(Division<8, 2, 1, 3>());
  else if constexpr (Layout<format>::kParts == 0)
    return kGated ? launch(Division<8, 1, 2>()) : launch(Division<16, 1, 1>());
  else if constexpr (kWhole)
    return few ? launch(Division<8, 1, 2>()) : launch(Division<8, 1, 1>());
  else
    return few ? launch(Division<16, 1, 1, 2>()) : launch(Division<8, 1, 1>());
}

template <WeightFormat format, class T, bool kWhole, bool kGated>
int launch_rows(const SkinnyLinear& p, CUstream_st* stream) {
  // One row of x has a kernel of its own, but where the numbers need tables or change lanes.
  if constexpr (kWhole || Layout<format>::kParts == 0)
    if (p.m == 1 && p.matrix.columns * 2 <= kSharedBytes - kSumBytes)
      return launch_with<format, T, kWhole, kGated, true>(p, stream);
  return launch_with<format, T, kWhole, kGated, false>(p, stream);
}

template <WeightFormat format, class T>
int launch_of(const SkinnyLinear& p, CUstream_st* stream) {
  const bool gated = p.activation == RowActivation::kGatedSilu;
  if constexpr (format == WeightFormat::kInt4)
    if (p.group_shift > 0)
      return gated ? launch_rows<format, T, true, true>(p, stream) : launch_rows<format, T, true, false>(p, stream);
  return gated ? launch_rows<format, T, false, true>(p, stream) : launch_rows<format, T, false, false>(p, stream);
}

}  // namespace

int launch_skinny_linear(const SkinnyLinear& product, CUstream_st* stream) {
  return launch_packed(product, [&](const SkinnyLinear& p, auto format, auto number) {
    return launch_of<decltype(format)::value, decltype(number)>(p, stream);
  });
}

}  // namespace levin::kernels::detail
