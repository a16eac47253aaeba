#include <cmath>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "levin/kernels/cross_entropy/linear_cross_entropy_launch.h"
#include "levin/kernels/early_start.cuh"
#include "levin/kernels/linear/product_hopper.cuh"
#include "levin/kernels/numbers.cuh"
#include "levin/kernels/online_softmax.cuh"
#include "levin/kernels/packs.cuh"

// Logits are 2 to a power here: log2(e) times the logit. A row has a reference r, at first the logit of its target t,
// and its gradient but for a factor is 2^(l - r) where it is not the target, and minus the sum of all these there. So
// no second reading of the logits is needed for their largest. Where a logit is far above the reference, the row's
// largest logit becomes its reference, and the product is computed once more.
namespace levin::kernels::detail {
namespace {

using Launch = LinearCrossEntropyLaunch;
using Number = __nv_bfloat16;
static_assert(kTileColumns == kLinearCrossEntropyColumns);

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kFinishThreads = 512, kFinishWarps = kFinishThreads / 32, kFinishRows = 32;
/// How far a logit may be above the reference, e^40: factors and scaled rows are still normal numbers.
constexpr float kFar = 57.7f;
/// The largest that float16 has, but for some.
constexpr float kMost = 60000.f;
constexpr uint16_t kNothing = 0xFC00;  // minus infinity in float16

/// The scratch memory by its parts.
struct Scratch {
  float2* partials;   // [tiles across, rows]: the sum of a tile without the target, and its largest logit
  float* references;  // [rows]
  float* targets;     // [rows]: their logits
  int* far;           // whether a row has a logit far above its reference
};
__host__ __device__ inline Scratch scratch_of(const Launch& launch) {
  const int64_t tiles = (launch.columns + kTileColumns - 1) / kTileColumns, rows = launch.rows;
  float* const references = launch.scratch + 2 * tiles * rows;
  return {reinterpret_cast<float2*>(launch.scratch), references, references + rows,
          reinterpret_cast<int*>(references + 2 * rows)};
}

__device__ __forceinline__ __half2 halves(uint32_t bits) {
  __half2 both;
  memcpy(&both, &bits, 4);
  return both;
}

/// Logits to their gradients.
template <bool kAgain>
struct LogitTile {
  using Number = detail::Number;
  using Row = float;  // its reference

  CUtensorMap grads;
  Launch launch;
  Scratch scratch;

  __device__ bool idle() const { return kAgain && *scratch.far == 0; }
  __device__ float row(int row) const { return row < launch.rows ? scratch.references[row] : INFINITY; }
  /// float16 has more digits than bfloat16, and differences are not large.
  __device__ uint32_t staged(float reference, float a, float b, int) const {
    return packed_pair<__half>(fmaf(a, kLog2E, -reference), fmaf(b, kLog2E, -reference));
  }

  __device__ void operator()(const TilePart& part) const {
    const int row = part.row + part.lane;
    drop_target(part, row);
    float even = 0, odd = 0;
    __half2 top = __half2half2(__ushort_as_half(kNothing));
#pragma unroll 1
    for (int box = 0; box < TilePart::kBoxes; ++box) {
      uint4 packs[8];  // all are read before the first is written: they do not wait for each other
#pragma unroll
      for (int i = 0; i < 8; ++i) packs[i] = part.pack(8 * box + i);
#pragma unroll
      for (auto& pack : packs) {
        uint32_t pairs[4] = {pack.x, pack.y, pack.z, pack.w};
        top = __hmax2(
            top, __hmax2(__hmax2(halves(pairs[0]), halves(pairs[1])), __hmax2(halves(pairs[2]), halves(pairs[3]))));
#pragma unroll
        for (auto& pair : pairs) {
          const float2 logits = __half22float2(halves(pair));
          const float a = power_of_two(logits.x), b = power_of_two(logits.y);
          even += a, odd += b;
          pair = packed_pair<Number>(a, b);
        }
        pack = {pairs[0], pairs[1], pairs[2], pairs[3]};
      }
      if (launch.grads == nullptr) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) part.pack(8 * box + i) = packs[i];
      part.store(grads, box);
    }
    if (row < launch.rows)
      scratch.partials[static_cast<int64_t>(part.column / kTileColumns) * launch.rows + row] = {
          even + odd, __half2float(__hmax(__low2half(top), __high2half(top)))};
  }

 private:
  /// The target and what is no class count for nothing.
  __device__ void drop_target(const TilePart& part, int row) const {
    const int64_t target = (row < launch.rows ? launch.targets[row] : -1) - part.column;
    if (target >= 0 && target < kTileColumns) part.number(static_cast<int>(target)) = kNothing;
    for (int i = launch.classes - part.column; i < kTileColumns; ++i)
      if (i >= 0) part.number(i) = kNothing;
  }
};

/// Eight numbers times a factor.
__device__ __forceinline__ uint4 scaled(const uint4& pack, float factor) {
  uint32_t pairs[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
  for (auto& pair : pairs) {
    const float2 both = unpacked<Number>(pair);
    pair = packed_pair<Number>(both.x * factor, both.y * factor);
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}
__device__ __forceinline__ const uint4* packs_of(const void* matrix, int64_t row, int depth) {
  return reinterpret_cast<const uint4*>(static_cast<const Number*>(matrix) + row * depth);
}

/// A warp for each row: the logit of its target. Infinite where the row is ignored, so that all of it is zero.
__global__ void __launch_bounds__(kThreads) target_logits_kernel(const Launch launch) {
  const Scratch scratch = scratch_of(launch);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  let_next_start();
  wait_for_previous();
  if (row == 0 && lane == 0) *scratch.far = 0;
  if (row >= launch.rows) return;
  const int64_t target = launch.targets[row];
  float logit = target == launch.ignore_index ? INFINITY : NAN;
  if (target >= 0 && target < launch.classes && target != launch.ignore_index) {
    const uint4 *x = packs_of(launch.x, row, launch.depth), *w = packs_of(launch.w, target, launch.depth);
    float sum = 0;
    for (int i = lane; i < launch.depth / 8; i += 32) sum += product_of_packs<Number>(x[i], w[i]);
    logit = warp_sum(sum) * kLog2E;
  }
  if (lane == 0) scratch.references[row] = scratch.targets[row] = logit;
}

/// The loss of a row, the gradient of its target, and the factor. `sum` is without the target.
__device__ float finish_row(const Launch& launch, const Scratch& scratch, int row, float sum) {
  const int64_t target = launch.targets[row];
  if (target == launch.ignore_index) {
    launch.losses[row] = launch.factors[row] = 0;
    return 0;
  }
  const float reference = scratch.references[row], logit = scratch.targets[row];
  const float below = logit == reference ? 0.f : logit - reference;
  const float all = sum + power_of_two(below), factor = (launch.scale != nullptr ? *launch.scale : 1.f) / all;
  launch.losses[row] = below == 0 ? log1pf(sum) : logf(all) - below / kLog2E;
  launch.factors[row] = factor;
  if (launch.grads != nullptr && target >= 0 && target < launch.classes)
    static_cast<Number*>(launch.grads)[static_cast<int64_t>(row) * launch.columns + target] = narrowed<Number>(-sum);
  return factor;
}

template <bool kAgain>
__global__ void __launch_bounds__(kFinishThreads) finish_rows_kernel(const Launch launch) {
  __shared__ float sums[kFinishWarps][kFinishRows], tops[kFinishWarps][kFinishRows], factors[kFinishRows];
  const Scratch scratch = scratch_of(launch);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int begin = static_cast<int>(blockIdx.x) * kFinishRows, row = begin + lane;
  let_next_start();
  wait_for_previous();
  if (kAgain && *scratch.far == 0) return;
  const int tiles = (launch.columns + kTileColumns - 1) / kTileColumns;
  float sum = 0, top = -INFINITY;
  if (row < launch.rows)
#pragma unroll 8
    for (int i = warp; i < tiles; i += kFinishWarps) {
      const float2 tile = scratch.partials[static_cast<int64_t>(i) * launch.rows + row];
      sum += tile.x, top = fmaxf(top, tile.y);
    }
  sums[warp][lane] = sum, tops[warp][lane] = top;
  __syncthreads();
  if (warp == 0 && row < launch.rows) {
    for (int i = 1; i < kFinishWarps; ++i) sum += sums[i][lane], top = fmaxf(top, tops[i][lane]);
    const bool far = !kAgain && top > kFar;
    if (far) scratch.references[row] += fminf(top, kMost), *scratch.far = 1;
    factors[lane] = far ? 0.f : finish_row(launch, scratch, row, sum);
  }
  if (launch.grads == nullptr) return;
  __syncthreads();
  for (int i = warp; i < kFinishRows && begin + i < launch.rows; i += kFinishWarps) {
    const uint4* x = packs_of(launch.x, begin + i, launch.depth);
    auto* to = reinterpret_cast<uint4*>(static_cast<Number*>(launch.scaled_x) +
                                        static_cast<int64_t>(begin + i) * launch.depth);
    for (int k = lane; k < launch.depth / 8; k += 32) to[k] = scaled(x[k], factors[i]);
  }
}

template <bool kAgain>
cudaError_t run_pass(const Launch& launch, cudaStream_t stream) {
  LogitTile<kAgain> tile{{}, launch, scratch_of(launch)};
  if (launch.grads != nullptr)
    if (const auto error = matrix_map(tile.grads, launch.grads, false, launch.rows, launch.columns, kPartRows);
        error != cudaSuccess)
      return error;
  const auto sizes = product_sizes(launch.rows, launch.columns, launch.depth);
  if (const auto error = launch_product(launch.x, launch.w, sizes, tile, launch.processors, stream);
      error != cudaSuccess)
    return error;
  const LaunchShape shape{.grid = static_cast<unsigned>((launch.rows + kFinishRows - 1) / kFinishRows),
                          .block = kFinishThreads};
  return launch_early(finish_rows_kernel<kAgain>, shape, stream, launch);
}

}  // namespace

int launch_linear_cross_entropy(const Launch& launch, CUstream_st* stream) {
  const LaunchShape shape{.grid = static_cast<unsigned>((launch.rows + kWarps - 1) / kWarps), .block = kThreads};
  if (const auto error = launch_early(target_logits_kernel, shape, stream, launch); error != cudaSuccess) return error;
  if (const auto error = run_pass<false>(launch, stream); error != cudaSuccess) return error;
  return run_pass<true>(launch, stream);
}

}  // namespace levin::kernels::detail
