#include <cmath>

#include "levin/kernels/attention/attention_hopper.cuh"
#include "levin/kernels/attention/short_attention_launch.h"
#include "levin/kernels/packs.cuh"

// A block works on one head after the other. Queries, keys and values of a head lie in shared memory as a whole, so no
// row of scores is ever incomplete. Scores are registers of a warpgroup: 64 rows of kRows columns.
//
// Rows of a buffer behind the last token are zeros. A tile of 64 rows may reach behind its buffer: what is computed for
// such rows belongs to no token, and is never stored.
namespace levin::kernels::detail {
namespace {

constexpr int kRows = kShortAttentionMaxTokens;
constexpr int kHalf = kRows / 2;
constexpr int kSteps = kRows / 16;
constexpr int kBuffer = kRows * 128;  // bytes of a head of q, k or v
constexpr int kTile = 64 * 128;       // bytes of 64 rows
constexpr int kGroups = 2;            // warpgroups of a block; more of them would have too few registers
constexpr int kThreads = kGroups * 128;

/// Of `a` and `b`, 64 rows and all rows of 64 numbers: the products of each row with each row.
template <class T>
__device__ __forceinline__ void multiply_rows(float (&d)[kRows / 2], uint32_t a, uint32_t b) {
  const uint64_t first = matrix_at(same_in_warp(a)), second = matrix_at(same_in_warp(b));
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const auto rows = first + matrix_offset(32 * step), columns = second + matrix_offset(32 * step);
    product_64x104<T, 0>(d, rows, columns, step);
    product_64x104<T, kHalf / 2>(d, rows, columns + matrix_offset(kHalf * 128), step);
  }
}

/// 64 rows of kRows packed weights by kRows rows of 64 numbers.
template <class T>
__device__ __forceinline__ void mix_rows(float (&d)[32], const uint32_t (&weights)[kRows / 4], uint32_t b) {
  const uint64_t rows = matrix_at(same_in_warp(b));
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    product_64x64<T>(d, weights, 4 * step, rows + matrix_offset(2048 * step), step);
}

// ---- Forward: a warpgroup computes a tile of queries, then the next but one. The scores of its next tile are
// multiplied while it finishes this one.

constexpr int kStages = 2;  // heads in shared memory
constexpr int kForwardShared = 1024 + kStages * 3 * kBuffer;

template <class T>
__global__ __launch_bounds__(kThreads, 1) void short_attention_forward(const __grid_constant__ CUtensorMap qkv,
                                                                       const __grid_constant__ CUtensorMap out,
                                                                       float* sums, const Sizes sizes) {
  extern __shared__ char memory[];
  __shared__ uint64_t barriers[kStages];
  __shared__ int done[kStages];  // tiles
  const uint32_t base = (shared_address(memory) + 1023) & ~1023u, full = shared_address(barriers);
  const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const int tiles = (sizes.tokens + 63) / 64;
  const int mine = (sizes.total - static_cast<int>(blockIdx.x + 1)) / static_cast<int>(gridDim.x) + 1;  // heads
  const int units = mine * tiles;
  const auto load = [&](int i) {
    const int stage = i % kStages;
    const uint32_t to = base + stage * 3 * kBuffer;
    const auto [head, batch] = head_at(sizes, blockIdx.x + i * gridDim.x);
    expect_bytes(full + 8 * stage, 3 * kBuffer);
    for (int part = 0; part < 3; ++part)
      load_box(to + part * kBuffer, qkv, full + 8 * stage, 0, part * sizes.heads + head, batch);
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(full + 8 * i, 1);
      done[i] = 0;
    }
    fence_barriers();
    fence_async();
    for (int i = 0; i < kStages && i < mine; ++i) load(i);
  }
  __syncthreads();
  float s[kRows / 2];
  const auto start_scores = [&](int i, int tile) {
    const uint32_t q = base + i % kStages * 3 * kBuffer;
    wait_for_barrier(full + 8 * (i % kStages), i / kStages & 1);
    begin_products();
    multiply_rows<T>(s, q + tile * kTile, q + kBuffer);
    commit_products();
  };
  // Whoever is the last one with a head fetches the head after the next.
  const auto release = [&](int i) {
    if (threadIdx.x % 128 != 0) return;
    wait_until_read();
    __threadfence_block();
    if (atomicAdd(&done[i % kStages], 1) < tiles - 1) return;
    done[i % kStages] = 0;
    __threadfence_block();
    if (i + kStages < mine) load(i + kStages);
  };
  const float scale = sizes.scale * kLog2e;
  int i = 0, tile = group, before = 0;
  start_scores(i, tile);
  for (int unit = group; unit < units; unit += kGroups) {
    const uint32_t q = base + i % kStages * 3 * kBuffer + tile * kTile,
                   v = base + i % kStages * 3 * kBuffer + 2 * kBuffer;
    const int index = blockIdx.x + i * gridDim.x, rows = sizes.tokens - 64 * tile;
    wait_for_products<0>();
    pin(s);
    uint32_t p[kRows / 4] = {};
    float sum[2] = {1, 1}, top[2] = {-INFINITY, -INFINITY};
    if (16 * warp < rows) {
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        if (8 * j + 8 >= kShortAttentionMinTokens && 8 * j + 8 > sizes.tokens) {
          const int column = 8 * j + 2 * (lane & 3);
          if (column >= sizes.tokens) s[4 * j] = s[4 * j + 2] = -INFINITY;
          if (column + 1 >= sizes.tokens) s[4 * j + 1] = s[4 * j + 3] = -INFINITY;
        }
        top[0] = fmaxf(top[0], fmaxf(s[4 * j], s[4 * j + 1]));
        top[1] = fmaxf(top[1], fmaxf(s[4 * j + 2], s[4 * j + 3]));
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = quad_maximum(top[r]) * scale;
        sum[r] = 0;
      }
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        const float a = power_of_two(fmaf(s[4 * j], scale, -top[0])),
                    b = power_of_two(fmaf(s[4 * j + 1], scale, -top[0]));
        const float c = power_of_two(fmaf(s[4 * j + 2], scale, -top[1])),
                    d = power_of_two(fmaf(s[4 * j + 3], scale, -top[1]));
        sum[0] += a + b;
        sum[1] += c + d;
        p[2 * j] = packed_pair<T>(a, b);
        p[2 * j + 1] = packed_pair<T>(c, d);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) sum[r] = quad_sum(sum[r]);
    }
    float o[32];
    pin(p);
    begin_products();
    mix_rows<T>(o, p, v);
    commit_products();
    if (unit != group) release(before);
    const bool more = unit + kGroups < units, wraps = tile + kGroups >= tiles;
    const int next = i + wraps, next_tile = tile + kGroups - (wraps ? tiles : 0);
    start_scores(more ? next : i, more ? next_tile : tile);  // nobody reads those behind the last ones
    wait_for_products<1>();
    pin(o);
    pin(p);
#pragma unroll
    for (int r = 0; r < 2; ++r) scale_row(o, r, __fdividef(1.f, sum[r]));
    stage<T>(q, o, 1.f, warp, lane, rows);  // where its queries were
    fence_async();
    sync_threads(1 + group, 128);
    if (threadIdx.x % 128 == 0) {
      const auto [head, batch] = head_at(sizes, index);
      store_box(out, q, tile * 64, head, batch);
      commit_stores();
    }
    if ((lane & 3) == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 64 * tile + 16 * warp + 8 * r + lane / 4;
        if (row < sizes.tokens)
          sums[static_cast<size_t>(index) * sizes.tokens + row] = (top[r] + __log2f(sum[r])) * (1 / kLog2e);
      }
    }
    if (!more) release(i);
    before = i;
    i = next;
    tile = next_tile;
  }
  wait_for_products<0>();
  if (threadIdx.x % 128 == 0) wait_until_stored();
}

// ---- Backward: a warpgroup computes tiles of keys, by all queries: rows are keys, columns queries. What the scores
// get as a gradient is written to shared memory, and multiplied by the keys when it is complete.

constexpr int kBackwardShared = 1024 + 8 * kBuffer + kGroups * kTile;

template <class T, bool kColumns>
__global__ __launch_bounds__(kThreads, 1) void short_attention_backward(const __grid_constant__ CUtensorMap qkv,
                                                                        const __grid_constant__ CUtensorMap grad,
                                                                        const __grid_constant__ CUtensorMap qkv_grad,
                                                                        const T* outs, const T* grads,
                                                                        const float* sums, float* columns,
                                                                        const Sizes sizes) {
  extern __shared__ char memory[];
  __shared__ uint64_t barriers[1];
  __shared__ __align__(16) float2 numbers[kRows];  // of two queries: what logarithms of sums are, then `own`
  let_next_start();
  const uint32_t q = (shared_address(memory) + 1023) & ~1023u, k = q + kBuffer, v = k + kBuffer, g = v + kBuffer;
  const int tid = threadIdx.x, group = tid / 128, warp = tid % 128 / 32, lane = tid % 32;
  const uint32_t ds = g + kBuffer;  // [4][kRows keys][64 queries]
  const uint32_t spare = ds + 4 * kBuffer + group * kTile, full = shared_address(barriers);
  float* const number = reinterpret_cast<float*>(numbers);
  const int tiles = (sizes.tokens + 63) / 64;
  const bool leads = tid % 128 == 0;
  const auto load = [&](int index) {
    const auto [head, batch] = head_at(sizes, index);
    expect_bytes(full, 4 * kBuffer);
    load_box(q, qkv, full, 0, head, batch);
    load_box(g, grad, full, 0, head, batch);
    load_box(v, qkv, full, 0, 2 * sizes.heads + head, batch);
  };
  const auto load_keys = [&](int index) {
    const auto [head, batch] = head_at(sizes, index);
    load_box(k, qkv, full, 0, sizes.heads + head, batch);
  };
  const auto prefetch = [&](int index) {
    const auto [head, batch] = head_at(sizes, index);
    prefetch_box(grad, 0, head, batch);
    for (int part = 0; part < 3; ++part) prefetch_box(qkv, 0, part * sizes.heads + head, batch);
  };
  // Of each query: the product of its result and the gradient of that. Eight threads for a row.
  constexpr int kPasses = (kRows + 31) / 32;
  uint4 result[kPasses], result_grad[kPasses];
  float sum = 0;
  const auto fetch = [&](int index) {
    const auto [head, batch] = head_at(sizes, index);
    const size_t start = (static_cast<size_t>(batch) * sizes.tokens * sizes.heads + head) * 64 + tid % 8 * 8;
    sum = sums[static_cast<size_t>(index) * sizes.tokens + min(tid, sizes.tokens - 1)];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const size_t place = start + static_cast<size_t>(min(32 * pass + tid / 8, sizes.tokens - 1)) * sizes.heads * 64;
      result[pass] = *reinterpret_cast<const uint4*>(outs + place);
      result_grad[pass] = *reinterpret_cast<const uint4*>(grads + place);
    }
  };
  const auto prepare = [&] {
    // Columns behind the last token get no weight.
    if (tid < kRows) number[(tid & ~1) * 2 + (tid & 1)] = tid < sizes.tokens ? sum * kLog2e : INFINITY;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = 32 * pass + tid / 8;
      float own = product_of_packs<T>(result[pass], result_grad[pass]);
#pragma unroll
      for (int step = 1; step < 8; step *= 2) own += __shfl_xor_sync(~0u, own, step);
      if (tid % 8 == 0 && row < kRows) number[(row & ~1) * 2 + 2 + (row & 1)] = row < sizes.tokens ? own : 0.f;
    }
  };
  if (tid == 0) {
    init_barrier(full, 1);
    fence_barriers();
    fence_async();
    load(blockIdx.x);
    load_keys(blockIdx.x);
  }
  // Rows of keys that nobody writes.
  for (uint32_t place = (sizes.tokens + 15) / 16 * 2048 + tid * 16; place < kBuffer; place += kThreads * 16)
    for (int block = 0; block < 4; ++block)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(ds + block * kBuffer + place), "r"(0) : "memory");
  fence_async();
  fetch(blockIdx.x);
  prepare();
  __syncthreads();
  const float scale = sizes.scale * kLog2e;
  int phase = 0;
  for (int index = blockIdx.x; index < sizes.total; index += gridDim.x, phase ^= 1) {
    const auto [head, batch] = head_at(sizes, index);
    const int next = index + gridDim.x;
    const bool more = next < sizes.total;
    wait_for_barrier(full, phase);
    if (leads) wait_until_read();
    __syncthreads();
    if (more && tid == 0) prefetch(next);
    // Sums of columns of this warp, in memory of gradients of keys, which have gone.
    float* const column_sums = reinterpret_cast<float*>(memory + (ds + 4 * kBuffer - shared_address(memory)));
    [[maybe_unused]] const auto put = [&](int which, float2 two) {
      reinterpret_cast<float2*>(column_sums + ((group * 4 + warp) * 3 + which) * 64)[column_of(lane) / 2] = two;
    };
    [[maybe_unused]] float2 dv_columns = {}, dk_columns = {};
    for (int tile = group; tile < tiles; tile += kGroups) {
      const int rows = sizes.tokens - 64 * tile;
      float s[kRows / 2], d[kRows / 2], dv[32], dk[32];
      uint32_t p[kRows / 4] = {};
      // One group multiplies while the other one computes.
      if (tile == 1) sync_threads(1 + kGroups, kThreads);
      begin_products();
      multiply_rows<T>(s, k + tile * kTile, q);
      commit_products();
      wait_for_products<0>();
      pin(s);
      if (tile == 0) arrive_threads(1 + kGroups, kThreads);
      if (16 * warp < rows) {
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
          const float2 top = numbers[(4 * j + (lane & 3)) * 2];
          p[2 * j] = packed_pair<T>(power_of_two(fmaf(s[4 * j], scale, -top.x)),
                                    power_of_two(fmaf(s[4 * j + 1], scale, -top.y)));
          p[2 * j + 1] = packed_pair<T>(power_of_two(fmaf(s[4 * j + 2], scale, -top.x)),
                                        power_of_two(fmaf(s[4 * j + 3], scale, -top.y)));
        }
        // A key that is none: its scores of 0 may be far above the sums.
        const bool first = 16 * warp + lane / 4 < rows, second = 16 * warp + lane / 4 + 8 < rows;
        if (!second) {
#pragma unroll
          for (int j = 0; j < kRows / 8; ++j) {
            if (!first) p[2 * j] = 0;
            p[2 * j + 1] = 0;
          }
        }
      }
      pin(p);
      begin_products();
      multiply_rows<T>(d, v + tile * kTile, g);
      mix_rows<T>(dv, p, g);
      commit_products();
      wait_for_products<0>();
      pin(d);
      pin(dv);
      pin(p);
      if (16 * warp < rows) {
        const int row = 64 * tile + 16 * warp + (lane & 15), part = lane >> 4;
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
          const float2 own = numbers[(4 * j + (lane & 3)) * 2 + 1];
          p[2 * j] = gradient_of_scores<T>(p[2 * j], d[4 * j] - own.x, d[4 * j + 1] - own.y);
          p[2 * j + 1] = gradient_of_scores<T>(p[2 * j + 1], d[4 * j + 2] - own.x, d[4 * j + 3] - own.y);
          if (j % 2 == 1)
            store_matrices(ds + j / 8 * kBuffer + row * 128 + (((j % 8 - 1 + part) ^ (row & 7)) << 4), p[2 * j - 2],
                           p[2 * j - 1], p[2 * j], p[2 * j + 1]);
        }
      }
      pin(p);
      begin_products();
      mix_rows<T>(dk, p, q);
      commit_products();
      stage<T>(v + tile * kTile, dv, 1.f, warp, lane, rows);  // where its values were
      if constexpr (kColumns) {
        float each[16] = {};
        add_rows(each, dv, warp, lane, rows);
        const float2 two = warp_columns(each, lane);
        dv_columns = {dv_columns.x + two.x, dv_columns.y + two.y};
      }
      if (tile >= kGroups) {
        if (leads) wait_until_read();
        sync_threads(1 + group, 128);
      }
      wait_for_products<0>();
      pin(dk);
      stage<T>(spare, dk, sizes.scale, warp, lane, rows);
      fence_async();
      sync_threads(1 + group, 128);
      if (leads) {
        store_box(qkv_grad, v + tile * kTile, 64 * tile, 2 * sizes.heads + head, batch);
        store_box(qkv_grad, spare, 64 * tile, sizes.heads + head, batch);
        commit_stores();
      }
      if constexpr (kColumns) {
        float each[16] = {};
        add_rows(each, dk, warp, lane, rows);
        const float2 two = warp_columns(each, lane);
        dk_columns = {fmaf(two.x, sizes.scale, dk_columns.x), fmaf(two.y, sizes.scale, dk_columns.y)};
      }
    }
    fetch(more ? next : index);
    if (leads) wait_until_read();
    __syncthreads();
    if constexpr (kColumns) {
      put(1, dk_columns);
      put(2, dv_columns);
    }
    if (more && tid == 0) load(next);
    float dq[2][32];
    begin_products();
    const uint64_t scores = matrix_at(same_in_warp(ds + group * kBuffer)), keys = matrix_at(same_in_warp(k));
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        product_64x64<T>(dq[i], scores + matrix_offset(kGroups * i * kBuffer + 2048 * step),
                         keys + matrix_offset(2048 * step), step);
    commit_products();
    prepare();
    wait_for_products<0>();
    pin(dq[0]);
    pin(dq[1]);
    __syncthreads();
    if (more && tid == 0) load_keys(next);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int tile = group + kGroups * i;
      stage<T>(ds + tile * kBuffer, dq[i], sizes.scale, warp, lane, sizes.tokens - 64 * tile);
    }
    fence_async();
    sync_threads(1 + group, 128);
    if (leads) {
      for (int tile = group; tile < tiles; tile += kGroups)
        store_box(qkv_grad, ds + tile * kBuffer, 64 * tile, head, batch);
      commit_stores();
    }
    if constexpr (kColumns) {
      float each[16] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) add_rows(each, dq[i], warp, lane, sizes.tokens - 64 * (group + kGroups * i));
      const float2 two = warp_columns(each, lane);
      put(0, {two.x * sizes.scale, two.y * sizes.scale});
      __syncthreads();
      if (tid < 3 * 64) {
        float all = 0;
#pragma unroll
        for (int w = 0; w < kThreads / 32; ++w) all += column_sums[w * 3 * 64 + tid];
        columns[((static_cast<size_t>(batch) * 3 + tid / 64) * sizes.heads + head) * 64 + tid % 64] = all;
      }
    }
  }
  if (leads) wait_until_stored();
}

// ---- Launches.

int blocks_of(const PackedAttentionLaunch& launch) {
  const int total = launch.batch * launch.heads;
  return total < launch.processors ? total : launch.processors;
}

template <class T>
int forward_of(const PackedAttentionLaunch& launch, cudaStream_t stream) {
  CUtensorMap qkv, out;
  for (const auto error : {allow_shared_memory(short_attention_forward<T>, kForwardShared),
                           box_map(qkv, launch.qkv, tensor_of(launch), 3 * launch.heads, kRows),
                           box_map(out, launch.out, tensor_of(launch), launch.heads, 64)})
    if (error != cudaSuccess) return error;
  short_attention_forward<T>
      <<<blocks_of(launch), kThreads, kForwardShared, stream>>>(qkv, out, launch.sums, sizes_of(tensor_of(launch)));
  return cudaGetLastError();
}

template <class T, bool kColumns>
int backward_with(const PackedAttentionLaunch& launch, cudaStream_t stream) {
  CUtensorMap qkv, grad, qkv_grad;
  for (const auto error : {allow_shared_memory(short_attention_backward<T, kColumns>, kBackwardShared),
                           box_map(qkv, launch.qkv, tensor_of(launch), 3 * launch.heads, kRows),
                           box_map(grad, launch.grad, tensor_of(launch), launch.heads, kRows),
                           box_map(qkv_grad, launch.qkv_grad, tensor_of(launch), 3 * launch.heads, 64)})
    if (error != cudaSuccess) return error;
  short_attention_backward<T, kColumns><<<blocks_of(launch), kThreads, kBackwardShared, stream>>>(
      qkv, grad, qkv_grad, static_cast<const T*>(launch.out), static_cast<const T*>(launch.grad), launch.sums,
      launch.column_partials, sizes_of(tensor_of(launch)));
  if constexpr (kColumns)
    launch_finish<float>(launch.column_partials, launch.batch, int64_t{3} * launch.heads * kShortAttentionSize,
                         {{launch.column_sums}, {launch.column_sums_type}}, stream);
  return cudaGetLastError();
}

template <class T>
int backward_of(const PackedAttentionLaunch& launch, cudaStream_t stream) {
  return launch.column_sums != nullptr ? backward_with<T, true>(launch, stream)
                                       : backward_with<T, false>(launch, stream);
}

}  // namespace

int launch_short_attention(const PackedAttentionLaunch& launch, cudaStream_t stream) {
  return launch.half ? forward_of<__half>(launch, stream) : forward_of<__nv_bfloat16>(launch, stream);
}

int launch_short_attention_backward(const PackedAttentionLaunch& launch, cudaStream_t stream) {
  return launch.half ? backward_of<__half>(launch, stream) : backward_of<__nv_bfloat16>(launch, stream);
}

}  // namespace levin::kernels::detail
