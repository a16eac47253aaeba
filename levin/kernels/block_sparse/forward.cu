#include <cfloat>

#include "levin/kernels/block_sparse/tiles.cuh"
#include "levin/kernels/packs.cuh"

namespace levin::kernels::detail {
namespace {

/// The scores of 16 queries with 64 keys: scaled, less where the key is padding.
__device__ __forceinline__ void finish_scores(Rows16& scores, float scale, const bool* mask) {
  const int column = 2 * (lane_id() & 3);
#pragma unroll
  for (int g = 0; g < 8; ++g) {
    float added[2] = {0, 0};
    if (mask != nullptr) {
      added[0] = mask[8 * g + column] ? 0.0F : kPaddingPenalty;
      added[1] = mask[8 * g + column + 1] ? 0.0F : kPaddingPenalty;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[g][i] = scores[g][i] * scale + added[i & 1];
  }
}

/// Softmax as it goes: the largest score so far, the sum of exponentials, and results that are not yet divided by it.
struct RunningRows {
  Rows16 out;
  float largest[2], total[2];

  __device__ __forceinline__ void begin() {
    clear(out);
    largest[0] = largest[1] = -FLT_MAX;
    total[0] = total[1] = 0;
  }
  /// Scores become their exponentials.
  __device__ __forceinline__ void take(Rows16& scores) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = largest[half];
#pragma unroll
      for (int g = 0; g < 8; ++g) top = fmaxf(top, fmaxf(scores[g][2 * half], scores[g][2 * half + 1]));
      top = quad_maximum(top);
      const float shrink = __expf(largest[half] - top);
      largest[half] = top;
      total[half] *= shrink;
#pragma unroll
      for (int g = 0; g < 8; ++g)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[g][i] = __expf(scores[g][i] - top);
          total[half] += scores[g][i];
          out[g][i] *= shrink;
        }
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kTileThreads) block_sparse_kernel(const BlockSparseLaunch launch) {
  __shared__ alignas(128) char tiles[5 * kTileBytes];
  const SparsePlace place = sparse_place(launch);
  const SparseList keys = keys_of(launch, place);
  const int64_t stride = static_cast<int64_t>(3) * launch.heads * kSparseHead;
  const int64_t of_block = stride * kSparseBlock;
  const T* qkv = static_cast<const T*>(launch.qkv);
  const T *q = part_of(qkv, launch, place, 0), *k = part_of(qkv, launch, place, 1), *v = part_of(qkv, launch, place, 2);
  const bool* mask = launch.mask == nullptr
                         ? nullptr
                         : launch.mask + static_cast<int64_t>(place.sample) * launch.blocks * kSparseBlock;
  char* const query_tile = tiles;
  const auto stage = [&](int i) { return tiles + (1 + 2 * (i & 1)) * kTileBytes; };
  const auto fetch = [&](int i) {
    const int64_t at = keys[i] * of_block;
    begin_tile(stage(i), k + at, stride);
    begin_tile(stage(i) + kTileBytes, v + at, stride);
  };
  begin_tile(query_tile, q + place.block * of_block, stride);
  fetch(0);
  end_copies();

  const int row = 16 * (static_cast<int>(threadIdx.x) >> 5);
  Fragment queries[4];
  RunningRows rows;
  rows.begin();
  for (int i = 0; i < keys.count; ++i) {
    if (i + 1 < keys.count) fetch(i + 1);
    end_copies();
    await_copies<1>();
    __syncthreads();
    if (i == 0)
#pragma unroll
      for (int step = 0; step < 4; ++step) queries[step] = left_of(query_tile, row, step);
    Rows16 scores;
    clear(scores);
    add_product_of_rows<T>(scores, queries, stage(i));
    finish_scores(scores, launch.scale, mask == nullptr ? nullptr : mask + keys[i] * kSparseBlock);
    rows.take(scores);
    add_product_of_columns<T>(rows.out, scores, stage(i) + kTileBytes);
    __syncthreads();  // the next copy writes where this one was
  }

  const int mine = row + (lane_id() >> 2);
  float factor[2];
  float* sums = launch.sums + statistics_of(launch, place) + place.block * kSparseBlock;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = mine + 8 * half;
    const float total = quad_sum(rows.total[half]);
    const bool token = mask == nullptr || mask[place.block * kSparseBlock + at];
    factor[half] = token ? 1.0F / total : 0.0F;
    // Infinite: in backward such a query weighs nothing.
    if ((lane_id() & 3) == 0) sums[at] = token ? rows.largest[half] + __logf(total) : INFINITY;
  }
  const int64_t out_stride = static_cast<int64_t>(launch.heads) * kSparseHead;
  T* out = head_of(static_cast<T*>(launch.out), launch, place) + place.block * kSparseBlock * out_stride;
  store_rows(out, out_stride, mine, rows.out, factor[0], factor[1]);
}

}  // namespace

int launch_block_sparse(const BlockSparseLaunch& launch, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>(launch.batch * launch.heads), static_cast<unsigned>(launch.blocks));
  if (launch.type == NumberType::kHalf)
    block_sparse_kernel<__half><<<grid, kTileThreads, 0, stream>>>(launch);
  else
    block_sparse_kernel<__nv_bfloat16><<<grid, kTileThreads, 0, stream>>>(launch);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
