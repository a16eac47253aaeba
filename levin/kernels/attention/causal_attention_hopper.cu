#include <algorithm>
#include <cmath>
#include <type_traits>

#include "levin/kernels/attention/attention_hopper.cuh"
#include "levin/kernels/attention/causal_attention_launch.h"
#include "levin/kernels/cluster.cuh"
#include "levin/kernels/early_start.cuh"
#include "levin/kernels/packs.cuh"

// The gradient of causal attention. Two blocks, a cluster, have a head. A block takes some tiles of keys, one after the
// other, and for each of them the tiles of queries that see it. Rows of products are keys, columns queries, so the
// gradients of keys and values stay in registers until a tile of keys is done.
//
// Those of queries are sums over tiles of keys. Each block adds them up in memory of its own (which stays in the
// cache), a thread always the same numbers, and the two blocks add their halves when the head is done: the order of all
// sums is fixed.
namespace levin::kernels::detail {
namespace {

constexpr int kTile = kCausalAttentionTile;
constexpr int kTileBytes = kTile * 128, kHalfBytes = kTileBytes / 2;
constexpr int kGroups = 2;  // warpgroups; each has 64 of the keys of a tile
constexpr int kThreads = kGroups * 128;
constexpr int kBlocks = 2;  // of a cluster
static_assert(kCausalAttentionParts == kBlocks);

// Shared memory: keys and values of this tile and of the next; queries and gradients of this step and of the next;
// gradients of scores of this step and of the one before.
constexpr int kKeysAt = 0, kQueriesAt = 4 * kTileBytes, kScoresAt = 8 * kTileBytes, kNumbersAt = 12 * kTileBytes;

/// Tiles of keys of a block: 0, 3, 4, 7, ... or 1, 2, 5, 6, ...: both have as much to do.
__device__ __forceinline__ int next_keys(int keys) {
  return keys % 4 == 0 || keys % 4 == 2 ? keys + 3 : keys + 1;
}

/// A tile of keys, and one of queries that sees it.
struct Step {
  int index, keys, queries;
};

__device__ __forceinline__ void add_four(float4* to, const float* x) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}

/// 64 keys by 128 queries.
template <class T>
__device__ __forceinline__ void multiply_tiles(float (&d)[64], uint32_t a, uint32_t b) {
  const uint64_t rows = matrix_at(same_in_warp(a)), columns = matrix_at(same_in_warp(b));
#pragma unroll
  for (int n = 0; n < 4; ++n) product_64x128<T>(d, rows + matrix_offset(32 * n), columns + matrix_offset(32 * n), n);
}
/// 64 keys of 128 packed numbers by 128 queries of 64. `adds`: to what is there.
template <class T>
__device__ __forceinline__ void mix_queries(float (&d)[32], const uint32_t (&a)[32], uint32_t b, int adds) {
  const uint64_t queries = matrix_at(same_in_warp(b));
#pragma unroll
  for (int n = 0; n < 8; ++n) product_64x64<T>(d, a, 4 * n, queries + matrix_offset(2048 * n), adds | n);
}
/// 64 queries by 128 keys of 64 numbers.
template <class T>
__device__ __forceinline__ void mix_keys(float (&d)[32], uint32_t a, uint32_t b) {
  const uint64_t scores = matrix_at(same_in_warp(a)), keys = matrix_at(same_in_warp(b));
#pragma unroll
  for (int n = 0; n < 8; ++n) product_64x64<T>(d, scores + matrix_offset(2048 * n), keys + matrix_offset(2048 * n), n);
}

template <class T, bool kColumns>
__global__ __launch_bounds__(kThreads, 1) void causal_attention_backward(
    const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap grad,
    const __grid_constant__ CUtensorMap out, const __grid_constant__ CUtensorMap qkv_grad, const T* outs,
    const T* grads, const float* sums, float* scratch, float* columns, const Sizes sizes) {
  extern __shared__ char memory[];
  __shared__ uint64_t barriers[4];
  let_next_start();
  const int tiles = (sizes.tokens + kTile - 1) / kTile, padded = tiles * kTile;
  const uint32_t base = (shared_address(memory) + 1023) & ~1023u;
  const uint32_t scores = base + kScoresAt;  // [2][64 queries of a group][keys]
  // Of two queries: logarithms of sums, then products of the result and its gradient.
  float2* const numbers = reinterpret_cast<float2*>(memory + (base - shared_address(memory)) + kNumbersAt);
  float* const number = reinterpret_cast<float*>(numbers);
  float2* const of_columns = numbers + padded + threadIdx.x;  // [3][threads]: sums of columns of this head
  const uint32_t queries_there = shared_address(barriers), keys_there = queries_there + 16;
  const int tid = threadIdx.x, group = tid / 128, of_group = tid % 128, warp = of_group / 32, lane = tid % 32;
  const int rank = blockIdx.x % kBlocks, clusters = gridDim.x / kBlocks;
  const bool leads = of_group == 0;
  // Gradients of queries by this block and by the other one, as the threads have them: [64 queries][8][128 threads][4].
  constexpr int kFours = 8 * 128;
  float4* const own =
      reinterpret_cast<float4*>(scratch + static_cast<size_t>(blockIdx.x) * padded * kHeadSize) + of_group;
  float4* const other =
      reinterpret_cast<float4*>(scratch + static_cast<size_t>(blockIdx.x ^ 1) * padded * kHeadSize) + of_group;

  const auto first_of_keys = [&](int index, int keys) {  // of the tile of keys behind this one
    const int next = next_keys(keys);
    return next < tiles ? Step{index, next, next} : Step{index + clusters, rank, rank};
  };
  const auto step_after = [&](const Step& step) {
    return step.queries + 1 < tiles ? Step{step.index, step.keys, step.queries + 1}
                                    : first_of_keys(step.index, step.keys);
  };
  const auto load_queries = [&](const Step& step, int count) {
    if (step.index >= sizes.total) return;
    const auto [head, batch] = head_at(sizes, step.index);
    const uint32_t to = base + kQueriesAt + (count & 1) * 2 * kTileBytes, full = queries_there + 8 * (count & 1);
    expect_bytes(full, 2 * kTileBytes);
    load_box(to, qkv, full, step.queries * kTile, head, batch);
    load_box(to + kTileBytes, grad, full, step.queries * kTile, head, batch);
  };
  const auto load_keys = [&](const Step& step, int count) {
    if (step.index >= sizes.total) return;
    const auto [head, batch] = head_at(sizes, step.index);
    const uint32_t to = base + kKeysAt + (count & 1) * 2 * kTileBytes, full = keys_there + 8 * (count & 1);
    expect_bytes(full, 2 * kTileBytes);
    load_box(to, qkv, full, step.keys * kTile, sizes.heads + head, batch);
    load_box(to + kTileBytes, qkv, full, step.keys * kTile, 2 * sizes.heads + head, batch);
  };
  const auto prefetch = [&](int index, int tile) {
    if (index >= sizes.total) return;
    const auto [head, batch] = head_at(sizes, index);
    prefetch_box(out, tile * kTile, head, batch);
    prefetch_box(grad, tile * kTile, head, batch);
  };

  // Logarithms of sums of all queries; of half of them the product of the result and its gradient, for both blocks.
  const auto prepare = [&](int index) {
    const auto [head, batch] = head_at(sizes, index);
    for (int i = tid; i < padded; i += kThreads)
      number[(i & ~1) * 2 + (i & 1)] =
          i < sizes.tokens ? sums[static_cast<size_t>(index) * sizes.tokens + i] * kLog2e : INFINITY;
    const size_t start = (static_cast<size_t>(batch) * sizes.tokens * sizes.heads + head) * kHeadSize + tid % 8 * 8;
    constexpr int kAtOnce = 8, kRowsOfPass = kThreads / 8;
    const int end = (rank + 1) * (padded / 2);
    for (int row = rank * (padded / 2) + tid / 8; row < end; row += kAtOnce * kRowsOfPass) {
      uint4 result[kAtOnce], result_grad[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const size_t place =
            start + static_cast<size_t>(min(row + k * kRowsOfPass, sizes.tokens - 1)) * sizes.heads * kHeadSize;
        result[k] = *reinterpret_cast<const uint4*>(outs + place);
        result_grad[k] = *reinterpret_cast<const uint4*>(grads + place);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        float product = product_of_packs<T>(result[k], result_grad[k]);
#pragma unroll
        for (int lanes = 1; lanes < 8; lanes *= 2) product += __shfl_xor_sync(~0u, product, lanes);
        const int at = row + k * kRowsOfPass;
        if (tid % 8 < kBlocks && at < end) {
          float* const place = number + (at & ~1) * 2 + 2 + (at & 1);
          store_in_block(place_in_block(place, tid % 8), at < sizes.tokens ? product : 0.f);
        }
      }
    }
  };

  int index = static_cast<int>(blockIdx.x) / kBlocks, steps = 0, tiles_of_keys = 0;
  if (tid == 0) {
    for (int i = 0; i < 4; ++i) init_barrier(queries_there + 8 * i, 1);
    fence_barriers();
    fence_async();
    const Step first{index, rank, rank};
    load_keys(first, 0);
    load_queries(first, 0);
    load_queries(step_after(first), 1);
    load_keys(first_of_keys(index, rank), 1);
  }
  sync_cluster();
  const float scale = sizes.scale * kLog2e;

  float s[64];
  wait_for_barrier(keys_there, 0);
  wait_for_barrier(queries_there, 0);
  begin_products();
  multiply_tiles<T>(s, base + kKeysAt + group * kHalfBytes, base + kQueriesAt);
  commit_products();
  wait_for_products<0>();
  pin(s);

  for (; index < sizes.total; index += clusters) {
    const Head here = head_at(sizes, index);
    const int head = here.head, batch = here.batch;
    prepare(index);
    sync_cluster();
    if constexpr (kColumns) {
#pragma unroll
      for (int which = 0; which < 3; ++which) of_columns[which * kThreads] = {};
    }
    for (int keys = rank; keys < tiles; keys = next_keys(keys), ++tiles_of_keys) {
      const uint32_t k = base + kKeysAt + (tiles_of_keys & 1) * 2 * kTileBytes, v = k + kTileBytes;
      const uint32_t k_after = base + kKeysAt + (~tiles_of_keys & 1) * 2 * kTileBytes;
      float dk[32], dv[32], dq[32];
      // Adds the gradients of 64 queries up.
      const auto add_queries = [&](int i) {
        float4* const to = own + (2 * i + group) * kFours;
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          if (keys == rank)
            to[c * 128] = {dq[4 * c], dq[4 * c + 1], dq[4 * c + 2], dq[4 * c + 3]};
          else
            add_four(to + c * 128, dq + 4 * c);
        }
      };
      // One tile of queries. Its scores are on their way; those of the next one are when it ends. The gradients of the
      // queries before are multiplied meanwhile.
      const auto run_step = [&](int i, auto is_first) {
        constexpr bool kFirst = decltype(is_first)::value;
        const uint32_t q = base + kQueriesAt + (steps & 1) * 2 * kTileBytes, g = q + kTileBytes;
        const uint32_t own_scores = scores + (steps & 1) * 2 * kTileBytes;
        const bool ends = i + 1 == tiles;
        float d[64];
        uint32_t p[32], e[32];
        begin_products();
        multiply_tiles<T>(d, v + group * kHalfBytes, g);
        commit_products();
        const float2* const of_queries = numbers + i * kTile + (lane & 3) * 2;
        if constexpr (kFirst) {  // queries do not see later keys
          const int row = group * 64 + 16 * warp + lane / 4;
#pragma unroll
          for (int j = 0; j < 16; ++j) {
            const int column = 8 * j + 2 * (lane & 3);
            if (column < row) s[4 * j] = -INFINITY;
            if (column + 1 < row) s[4 * j + 1] = -INFINITY;
            if (column < row + 8) s[4 * j + 2] = -INFINITY;
            if (column + 1 < row + 8) s[4 * j + 3] = -INFINITY;
          }
        }
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const float2 top = of_queries[8 * j];
          p[2 * j] = packed_pair<T>(power_of_two(fmaf(s[4 * j], scale, -top.x)),
                                    power_of_two(fmaf(s[4 * j + 1], scale, -top.y)));
          p[2 * j + 1] = packed_pair<T>(power_of_two(fmaf(s[4 * j + 2], scale, -top.x)),
                                        power_of_two(fmaf(s[4 * j + 3], scale, -top.y)));
        }
        pin(p);
        begin_products();
        mix_queries<T>(dv, p, g, kFirst ? 0 : 1);
        if constexpr (!kFirst) mix_keys<T>(dq, scores + (~steps & 1) * 2 * kTileBytes + group * kTileBytes, k);
        commit_products();
        wait_for_products<1>();
        pin(d);
        {
          const int row = group * 64 + 16 * warp + (lane & 15), part = lane >> 4;
#pragma unroll
          for (int j = 0; j < 16; ++j) {
            const float2 product = of_queries[8 * j + 1];
            const float2 x = unpacked<T>(p[2 * j]), y = unpacked<T>(p[2 * j + 1]);
            e[2 * j] = packed_pair<T>(x.x * (d[4 * j] - product.x), x.y * (d[4 * j + 1] - product.y));
            e[2 * j + 1] = packed_pair<T>(y.x * (d[4 * j + 2] - product.x), y.y * (d[4 * j + 3] - product.y));
            if (j % 2 == 1)
              store_matrices(own_scores + j / 8 * kTileBytes + row * 128 + (((j % 8 - 1 + part) ^ (row & 7)) << 4),
                             e[2 * j - 2], e[2 * j - 1], e[2 * j], e[2 * j + 1]);
          }
        }
        fence_async();
        if (!ends || first_of_keys(index, keys).index < sizes.total) {
          wait_for_barrier(queries_there + 8 * (~steps & 1), steps + 1 >> 1 & 1);
          if (ends) wait_for_barrier(keys_there + 8 * (~tiles_of_keys & 1), tiles_of_keys + 1 >> 1 & 1);
        }
        wait_for_products<0>();
        pin(dv);
        pin(p);
        if constexpr (!kFirst) pin(dq);
        pin(e);
        begin_products();
        mix_queries<T>(dk, e, q, kFirst ? 0 : 1);
        multiply_tiles<T>(s, (ends ? k_after : k) + group * kHalfBytes,
                          base + kQueriesAt + (~steps & 1) * 2 * kTileBytes);
        commit_products();
        if constexpr (!kFirst) add_queries(i - 1);
        wait_for_products<0>();
        pin(dk);
        pin(e);
        pin(s);
        if (leads) wait_until_read();  // gradients of the keys before these, where those of scores go next
        sync_threads(1, kThreads);
        if (tid == 0) {
          load_queries(step_after(step_after({index, keys, i})), steps);
          if (keys == rank) prefetch(index + clusters, i);
        }
        ++steps;
      };
      run_step(keys, std::true_type());
      for (int i = keys + 1; i < tiles; ++i) run_step(i, std::false_type());
      begin_products();
      mix_keys<T>(dq, scores + (~steps & 1) * 2 * kTileBytes + group * kTileBytes, k);
      commit_products();
      wait_for_products<0>();
      pin(dq);
      add_queries(tiles - 1);
      sync_threads(1, kThreads);
      if (tid == 0) {
        const Step next = first_of_keys(index, keys);
        load_keys(first_of_keys(next.index, next.keys), tiles_of_keys);
      }
      const int rows = sizes.tokens - keys * kTile - group * 64;
      const uint32_t staged = scores + (~steps & 1) * 2 * kTileBytes + group * kTileBytes;
      stage<T>(staged, dk, sizes.scale, warp, lane, rows);
      stage<T>(staged + kHalfBytes, dv, 1.f, warp, lane, rows);
      fence_async();
      sync_threads(2 + group, 128);
      if (leads && rows > 0) {
        store_box(qkv_grad, staged, keys * kTile + group * 64, sizes.heads + head, batch);
        store_box(qkv_grad, staged + kHalfBytes, keys * kTile + group * 64, 2 * sizes.heads + head, batch);
        commit_stores();
      }
      if constexpr (kColumns) {
        add_columns(of_columns[kThreads], dk, sizes.scale, warp, lane, rows);
        add_columns(of_columns[2 * kThreads], dv, 1.f, warp, lane, rows);
      }
    }
    if (leads) wait_until_read();
    __threadfence();
    sync_cluster();
    // The sums of both blocks, half of the queries each. The second block has none of the first tile of queries.
    const int first_tile = rank * tiles + group;
    float4 mine[8], theirs[8];
    const auto fetch = [&](int tile) {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        mine[c] = theirs[c] = {};
        if (rank == 0 || tile >= 2) mine[c] = __ldcg(own + tile * kFours + c * 128);
        if (rank == 1 || tile >= 2) theirs[c] = __ldcg(other + tile * kFours + c * 128);
      }
    };
    fetch(first_tile);
    for (int tile = first_tile, slot = 0; tile < (rank + 1) * tiles; tile += kGroups, slot = (slot + 1) % 4) {
      float dq[32];
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float4 a = rank == 0 ? mine[c] : theirs[c], b = rank == 0 ? theirs[c] : mine[c];
        dq[4 * c] = a.x + b.x, dq[4 * c + 1] = a.y + b.y, dq[4 * c + 2] = a.z + b.z, dq[4 * c + 3] = a.w + b.w;
      }
      if (tile + kGroups < (rank + 1) * tiles) fetch(tile + kGroups);
      const int rows = sizes.tokens - tile * 64;
      const uint32_t to = scores + (group * 4 + slot) * kHalfBytes;
      if (slot == 0) {
        if (leads) wait_until_read();
        sync_threads(2 + group, 128);
      }
      stage<T>(to, dq, sizes.scale, warp, lane, rows);
      fence_async();
      sync_threads(2 + group, 128);
      if (leads && rows > 0) {
        store_box(qkv_grad, to, tile * 64, head, batch);
        commit_stores();
      }
      if constexpr (kColumns) add_columns(of_columns[0], dq, sizes.scale, warp, lane, rows);
    }
    if (leads) wait_until_read();
    if constexpr (kColumns) {
      sync_threads(1, kThreads);
      if (tid < 3 * 32) {  // warp `which` adds those of all warps
        const int which = tid / 32, part = batch * kBlocks + rank;
        float2 all = {};
#pragma unroll
        for (int w = 0; w < kThreads / 32; ++w) {
          const float2 two = numbers[padded + which * kThreads + w * 32 + lane];
          all = {all.x + two.x, all.y + two.y};
        }
        float* const to = columns + ((static_cast<size_t>(part) * 3 + which) * sizes.heads + head) * kHeadSize;
        reinterpret_cast<float2*>(to)[column_of(lane) / 2] = all;
      }
    }
  }
  if (leads) wait_until_stored();
}

constexpr int shared_bytes(int tokens) {
  return 1024 + kNumbersAt + (tokens + kTile - 1) / kTile * kTile * 8 + 3 * kThreads * 8;
}

/// Clusters that run at once: not all pairs of multiprocessors can be one.
template <class... Parameters>
cudaError_t most_clusters(void (*kernel)(Parameters...), int shared, int& clusters) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = kBlocks;
  launch.blockDim = kThreads;
  launch.dynamicSmemBytes = static_cast<size_t>(shared);
  launch.attrs = &cluster;
  launch.numAttrs = 1;
  return cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch);
}

template <class T, bool kColumns>
int backward_with(const PackedAttentionLaunch& launch, cudaStream_t stream) {
  const HeadTensor of = tensor_of(launch);
  const int shared = shared_bytes(launch.tokens);
  CUtensorMap qkv, grad, out, qkv_grad;
  for (const auto error :
       {allow_shared_memory(causal_attention_backward<T, kColumns>, shared),
        box_map(qkv, launch.qkv, of, 3 * launch.heads, kTile), box_map(grad, launch.grad, of, launch.heads, kTile),
        box_map(out, launch.out, of, launch.heads, kTile),
        box_map(qkv_grad, launch.qkv_grad, of, 3 * launch.heads, 64)})
    if (error != cudaSuccess) return error;
  const int total = launch.batch * launch.heads;
  int most = 0;
  if (const auto error = most_clusters(causal_attention_backward<T, kColumns>, shared, most); error != cudaSuccess)
    return error;
  const auto blocks = static_cast<unsigned>(kBlocks * std::min({total, most, launch.processors / kBlocks}));
  const LaunchShape shape{.grid = blocks,
                          .block = kThreads,
                          .shared_bytes = static_cast<size_t>(shared),
                          .early = false,
                          .cluster = kBlocks};
  const auto error = launch_early(causal_attention_backward<T, kColumns>, shape, stream, qkv, grad, out, qkv_grad,
                                  static_cast<const T*>(launch.out), static_cast<const T*>(launch.grad), launch.sums,
                                  launch.scratch, launch.column_partials, sizes_of(of));
  if (error != cudaSuccess) return error;
  if constexpr (kColumns)
    launch_finish<float>(launch.column_partials, int64_t{launch.batch} * kCausalAttentionParts,
                         int64_t{3} * launch.heads * kHeadSize, {{launch.column_sums}, {launch.column_sums_type}},
                         stream);
  return cudaGetLastError();
}

template <class T>
int backward_of(const PackedAttentionLaunch& launch, cudaStream_t stream) {
  return launch.column_sums != nullptr ? backward_with<T, true>(launch, stream)
                                       : backward_with<T, false>(launch, stream);
}

}  // namespace

int launch_causal_attention_backward(const PackedAttentionLaunch& launch, CUstream_st* stream) {
  return launch.half ? backward_of<__half>(launch, stream) : backward_of<__nv_bfloat16>(launch, stream);
}

}  // namespace levin::kernels::detail
