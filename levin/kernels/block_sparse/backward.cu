#include "levin/kernels/block_sparse/tiles.cuh"

namespace levin::kernels::detail {
namespace {

// ---- sums of grad * out over a head

constexpr int kRowThreads = 8;  // of a row of 64 numbers, 16 bytes each

template <class T>
__global__ void __launch_bounds__(kTileThreads) head_products_kernel(const BlockSparseBackwardLaunch launch) {
  const auto& f = launch.forward;
  const int64_t tokens = static_cast<int64_t>(f.blocks) * kSparseBlock, rows = f.batch * tokens * f.heads;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x) / kRowThreads;
  const int pack = static_cast<int>(threadIdx.x) % kRowThreads;
  const bool inside = row < rows;
  float sum = 0;
  if (inside) {
    const int64_t at = row * kSparseHead + pack * 8;
    const uint4 a = *reinterpret_cast<const uint4*>(static_cast<const T*>(f.out) + at);
    const uint4 b = *reinterpret_cast<const uint4*>(static_cast<const T*>(launch.grad) + at);
    const T *x = reinterpret_cast<const T*>(&a), *y = reinterpret_cast<const T*>(&b);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += widened(x[i]) * widened(y[i]);
  }
#pragma unroll
  for (int step = 1; step < kRowThreads; step *= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
  if (!inside || pack != 0) return;
  const int64_t head = row % f.heads, token = row / f.heads;
  launch.products[(token / tokens * f.heads + head) * tokens + token % tokens] = sum;
}

// ---- gradients of queries: a block of queries goes over its keys

template <class T>
__global__ void __launch_bounds__(kTileThreads, 3) sparse_queries_kernel(const BlockSparseBackwardLaunch launch) {
  __shared__ alignas(128) char tiles[4 * kTileBytes];
  const auto& f = launch.forward;
  const SparsePlace place = sparse_place(f);
  const SparseList keys = keys_of(f, place);
  const int64_t out_stride = static_cast<int64_t>(f.heads) * kSparseHead, stride = 3 * out_stride;
  const int64_t of_block = stride * kSparseBlock;
  const T* qkv = static_cast<const T*>(f.qkv);
  const T *k = part_of(qkv, f, place, 1), *v = part_of(qkv, f, place, 2);
  const bool* mask =
      f.mask == nullptr ? nullptr : f.mask + static_cast<int64_t>(place.sample) * f.blocks * kSparseBlock;
  const auto stage = [&](int i) { return tiles + 2 * (i & 1) * kTileBytes; };
  const auto fetch = [&](int i) {
    const int64_t at = keys[i] * of_block;
    begin_tile(stage(i), k + at, stride);
    begin_tile(stage(i) + kTileBytes, v + at, stride);
  };
  // Queries and gradients go through the second stage to registers.
  begin_tile(stage(1), part_of(qkv, f, place, 0) + place.block * of_block, stride);
  begin_tile(stage(1) + kTileBytes,
             head_of(static_cast<const T*>(launch.grad), f, place) + place.block * kSparseBlock * out_stride,
             out_stride);
  end_copies();
  fetch(0);
  end_copies();
  await_copies<1>();
  __syncthreads();
  const int row = 16 * (static_cast<int>(threadIdx.x) >> 5), mine = row + (lane_id() >> 2);
  Fragment queries[4], grads[4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    queries[step] = left_of(stage(1), row, step);
    grads[step] = left_of(stage(1) + kTileBytes, row, step);
  }
  const int64_t statistics = statistics_of(f, place) + place.block * kSparseBlock + mine;
  const float sums[2] = {f.sums[statistics], f.sums[statistics + 8]};
  const float products[2] = {launch.products[statistics], launch.products[statistics + 8]};
  __syncthreads();

  Rows16 result;
  clear(result);
  for (int i = 0; i < keys.count; ++i) {
    if (i + 1 < keys.count) fetch(i + 1);
    end_copies();
    await_copies<1>();
    __syncthreads();
    Rows16 scores, changes;
    clear(scores);
    clear(changes);
    add_product_of_rows<T>(scores, queries, stage(i));
    add_product_of_rows<T>(changes, grads, stage(i) + kTileBytes);
    const bool* of_keys = mask == nullptr ? nullptr : mask + keys[i] * kSparseBlock;
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      float added[2] = {0, 0};
      if (of_keys != nullptr) {
        added[0] = of_keys[8 * g + 2 * (lane_id() & 3)] ? 0.0F : kPaddingPenalty;
        added[1] = of_keys[8 * g + 2 * (lane_id() & 3) + 1] ? 0.0F : kPaddingPenalty;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float weight = __expf(scores[g][j] * f.scale + added[j & 1] - sums[j >> 1]);
        scores[g][j] = weight * (changes[g][j] - products[j >> 1]);
      }
    }
    add_product_of_columns<T>(result, scores, stage(i));
    __syncthreads();
  }
  T* to = part_of(static_cast<T*>(launch.grad_qkv), f, place, 0) + place.block * of_block;
  store_rows(to, stride, mine, result, f.scale, f.scale);
}

// ---- gradients of keys and values: a block of keys goes over the queries that see it

template <class T>
__global__ void __launch_bounds__(kTileThreads) sparse_keys_kernel(const BlockSparseBackwardLaunch launch) {
  __shared__ alignas(128) char tiles[4 * kTileBytes];
  __shared__ float statistics[2][2][kSparseBlock];  // [stage][sums, products][query]
  const auto& f = launch.forward;
  const SparsePlace place = sparse_place(f);
  const SparseList queries = queries_of(f, place);
  const int64_t out_stride = static_cast<int64_t>(f.heads) * kSparseHead, stride = 3 * out_stride;
  const int64_t of_block = stride * kSparseBlock;
  const T* qkv = static_cast<const T*>(f.qkv);
  const T* q = part_of(qkv, f, place, 0);
  const T* grad = head_of(static_cast<const T*>(launch.grad), f, place);
  const int64_t of_head = statistics_of(f, place);
  const auto stage = [&](int i) { return tiles + 2 * (i & 1) * kTileBytes; };
  const auto fetch = [&](int i) {
    const int64_t block = queries[i];
    begin_tile(stage(i), q + block * of_block, stride);
    begin_tile(stage(i) + kTileBytes, grad + block * kSparseBlock * out_stride, out_stride);
    // 64 numbers of each are 16 packs of 16 bytes.
    const int pack = static_cast<int>(threadIdx.x);
    if (pack < 32) {
      const float* from = (pack < 16 ? f.sums : launch.products) + of_head + block * kSparseBlock + (pack & 15) * 4;
      begin_copy(&statistics[i & 1][pack >> 4][(pack & 15) * 4], from);
    }
  };
  begin_tile(stage(1), part_of(qkv, f, place, 1) + place.block * of_block, stride);
  begin_tile(stage(1) + kTileBytes, part_of(qkv, f, place, 2) + place.block * of_block, stride);
  end_copies();
  fetch(0);
  end_copies();
  await_copies<1>();
  __syncthreads();
  const int row = 16 * (static_cast<int>(threadIdx.x) >> 5), mine = row + (lane_id() >> 2);
  Fragment keys[4], values[4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    keys[step] = left_of(stage(1), row, step);
    values[step] = left_of(stage(1) + kTileBytes, row, step);
  }
  float added[2] = {0, 0};
  if (f.mask != nullptr) {
    const bool* mask = f.mask + (static_cast<int64_t>(place.sample) * f.blocks + place.block) * kSparseBlock;
    added[0] = mask[mine] ? 0.0F : kPaddingPenalty;
    added[1] = mask[mine + 8] ? 0.0F : kPaddingPenalty;
  }
  __syncthreads();

  Rows16 key_result, value_result;
  clear(key_result);
  clear(value_result);
  for (int i = 0; i < queries.count; ++i) {
    if (i + 1 < queries.count) fetch(i + 1);
    end_copies();
    await_copies<1>();
    __syncthreads();
    const float *sums = statistics[i & 1][0], *products = statistics[i & 1][1];
    const int column = 2 * (lane_id() & 3);
    Rows16 weights, changes;  // [key][query]
    clear(weights);
    add_product_of_rows<T>(weights, keys, stage(i));
#pragma unroll
    for (int g = 0; g < 8; ++g)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        weights[g][j] = __expf(weights[g][j] * f.scale + added[j >> 1] - sums[8 * g + column + (j & 1)]);
    add_product_of_columns<T>(value_result, weights, stage(i) + kTileBytes);
    clear(changes);
    add_product_of_rows<T>(changes, values, stage(i) + kTileBytes);
#pragma unroll
    for (int g = 0; g < 8; ++g)
#pragma unroll
      for (int j = 0; j < 4; ++j) weights[g][j] *= changes[g][j] - products[8 * g + column + (j & 1)];
    add_product_of_columns<T>(key_result, weights, stage(i));
    __syncthreads();
  }
  T* grad_qkv = static_cast<T*>(launch.grad_qkv);
  store_rows(part_of(grad_qkv, f, place, 1) + place.block * of_block, stride, mine, key_result, f.scale, f.scale);
  store_rows(part_of(grad_qkv, f, place, 2) + place.block * of_block, stride, mine, value_result, 1.0F, 1.0F);
}

template <class T>
void launch_sparse_backward(const BlockSparseBackwardLaunch& launch, cudaStream_t stream) {
  const auto& f = launch.forward;
  const int64_t rows = static_cast<int64_t>(f.batch) * f.blocks * kSparseBlock * f.heads;
  constexpr int kRowsOfBlock = kTileThreads / kRowThreads;
  head_products_kernel<T>
      <<<static_cast<unsigned>((rows + kRowsOfBlock - 1) / kRowsOfBlock), kTileThreads, 0, stream>>>(launch);
  const dim3 grid(static_cast<unsigned>(f.batch * f.heads), static_cast<unsigned>(f.blocks));
  sparse_keys_kernel<T><<<grid, kTileThreads, 0, stream>>>(launch);
  sparse_queries_kernel<T><<<grid, kTileThreads, 0, stream>>>(launch);
}

}  // namespace

int launch_block_sparse_backward(const BlockSparseBackwardLaunch& launch, CUstream_st* stream) {
  if (launch.forward.type == NumberType::kHalf)
    launch_sparse_backward<__half>(launch, stream);
  else
    launch_sparse_backward<__nv_bfloat16>(launch, stream);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
