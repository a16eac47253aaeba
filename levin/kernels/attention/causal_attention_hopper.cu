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
// gradients of keys and values stay in registers until a tile of keys is done. The two warpgroups of a block have half
// of the keys each; they need not be in the same step.
//
// Those of queries are sums over tiles of keys. Each block adds them up in memory of its own (which stays in the
// cache), a thread always the same numbers, and the two blocks add their halves when the head is done: the order of all
// sums is fixed.
namespace levin::kernels::detail {
namespace {

constexpr int kTile = kCausalAttentionTile;
constexpr int kTileBytes = kTile * 128, kHalfBytes = kTileBytes / 2;
constexpr int kGroups = 2;  // warpgroups; each has 64 of the keys of a tile
constexpr int kThreads = kGroups * 128, kWarps = kThreads / 32;
constexpr int kBlocks = 2;  // of a cluster
static_assert(kCausalAttentionParts == kBlocks);

// Shared memory: keys and values of this tile and of the next; queries and gradients of this step and of the next;
// gradients of scores of this step and of the one before.
constexpr int kKeysAt = 0, kQueriesAt = 4 * kTileBytes, kScoresAt = 8 * kTileBytes, kNumbersAt = 12 * kTileBytes;

/// Tiles of keys of a block: 0, 3, 4, 7, ... or 1, 2, 5, 6, ...: both have as much to do.
__device__ __forceinline__ int next_keys(int keys) {
  return keys % 4 == 0 || keys % 4 == 2 ? keys + 3 : keys + 1;
}

/// A tile of a head.
struct Place {
  int tile, index, head, batch;
};
/// What is loaded next. `first`: the first tile of queries that sees the keys of these.
struct Cursor {
  Place queries, keys;
  int first;
};

/// Sums stay in the cache of the device, before all else.
__device__ __forceinline__ uint64_t last_to_leave() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// A box that nobody else reads: it is the first to leave the cache.
__device__ __forceinline__ void load_box_once(uint32_t to, const CUtensorMap& map, uint32_t barrier, int row, int head,
                                              int batch) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(0), "r"(row), "r"(head), "r"(batch), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void put_four(float4* to, const float* x) {
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
               "f"(x[3]), "l"(last_to_leave())
               : "memory");
}
__device__ __forceinline__ void add_four(float4* to, const float* x) {
  asm volatile("red.global.add.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3]), "l"(last_to_leave())
               : "memory");
}

/// 64 keys by 128 queries. `adds`: to what is there.
template <class T>
__device__ __forceinline__ void multiply_tiles(float (&d)[64], uint32_t a, uint32_t b, int adds = 0) {
  const uint64_t rows = matrix_at(same_in_warp(a)), columns = matrix_at(same_in_warp(b));
#pragma unroll
  for (int n = 0; n < 4; ++n)
    product_64x128<T>(d, rows + matrix_offset(32 * n), columns + matrix_offset(32 * n), adds | n);
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

/// pin, of the first ones.
template <int kCount>
__device__ __forceinline__ void pin_first(uint32_t (&x)[32]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

template <class T, bool kColumns>
__global__ __launch_bounds__(kThreads, 1) void causal_attention_backward(const __grid_constant__ CUtensorMap qkv,
                                                                         const __grid_constant__ CUtensorMap grad,
                                                                         const __grid_constant__ CUtensorMap qkv_grad,
                                                                         const T* outs, const T* grads,
                                                                         const float* sums, float* scratch,
                                                                         float* columns, const Sizes sizes) {
  extern __shared__ char memory[];
  __shared__ uint64_t barriers[12];
  __shared__ Cursor cursors[kGroups];
  let_next_start();
  const int tiles = (sizes.tokens + kTile - 1) / kTile, padded = tiles * kTile;
  const uint32_t base = (shared_address(memory) + 1023) & ~1023u;
  const uint32_t scores = base + kScoresAt;  // [2][64 queries of a group][keys]
  // Of two queries: logarithms of sums, then products of the result and its gradient, times -1.
  float2* const numbers = reinterpret_cast<float2*>(memory + (base - shared_address(memory)) + kNumbersAt);
  float* const number = reinterpret_cast<float*>(numbers);
  float2* const of_columns = numbers + padded + threadIdx.x;  // [3][threads]: sums of columns of this head
  // Of two places each: that something is there, and that nobody needs it any more.
  const uint32_t queries_there = shared_address(barriers), queries_gone = queries_there + 16;
  const uint32_t keys_there = queries_there + 32, keys_gone = queries_there + 48;
  const uint32_t scores_there = queries_there + 64, scores_gone = queries_there + 80;
  const int tid = threadIdx.x, group = tid / 128, of_group = tid % 128, warp = of_group / 32, lane = tid % 32;
  const int rank = blockIdx.x % kBlocks, clusters = gridDim.x / kBlocks;
  const bool leads = of_group == 0;
  // Gradients of queries by this block and by the other one, as the threads have them: [64 queries][8][128 threads][4].
  constexpr int kFours = 8 * 128;
  float4* const own =
      reinterpret_cast<float4*>(scratch + static_cast<size_t>(blockIdx.x) * padded * kHeadSize) + of_group;
  float4* const other =
      reinterpret_cast<float4*>(scratch + static_cast<size_t>(blockIdx.x ^ 1) * padded * kHeadSize) + of_group;

  // Two threads load, in the order of steps: queries and keys, gradients and values.
  const int loads = group == 1 && lane == 0 && warp < 2 ? warp : -1;
  Cursor* const cursor = cursors + loads;
  const auto load_queries = [&](const Place& at, int count) {
    if (at.index >= sizes.total) return;
    const uint32_t to = base + kQueriesAt + (count & 1) * 2 * kTileBytes, full = queries_there + 8 * (count & 1);
    expect_bytes(full, kTileBytes);
    if (loads == 0)
      load_box(to, qkv, full, at.tile * kTile, at.head, at.batch);
    else
      load_box(to + kTileBytes, grad, full, at.tile * kTile, at.head, at.batch);
  };
  const auto load_keys = [&](const Place& at, int count) {
    if (at.index >= sizes.total) return;
    const uint32_t to = base + kKeysAt + (count & 1) * 2 * kTileBytes, full = keys_there + 8 * (count & 1);
    expect_bytes(full, kTileBytes);
    load_box_once(to + loads * kTileBytes, qkv, full, at.tile * kTile, (1 + loads) * sizes.heads + at.head, at.batch);
  };
  const auto move_on = [&](Place& at) {
    at.tile = next_keys(at.tile);
    if (at.tile < tiles) return;
    at.tile = rank;
    at.index += clusters;
    const auto [head, batch] = head_at(sizes, at.index);
    at.head = head, at.batch = batch;
  };
  const auto next_of_keys = [&] {
    const Place here = cursor->keys;
    move_on(cursor->keys);
    return here;
  };
  const auto next_of_queries = [&] {
    const Place here = cursor->queries;
    Place& at = cursor->queries;
    if (++at.tile == tiles) {
      at.tile = cursor->first;
      move_on(at);
      cursor->first = at.tile;
    }
    return here;
  };

  // Of the next head, before all are done with this one: logarithms of sums of all queries; of half of them the product
  // of the result and its gradient, for both blocks.
  constexpr int kAtOnce = 8, kRowsOfPass = kThreads / 8, kLogs = kCausalAttentionMaxTokens / kThreads,
                kPasses = kCausalAttentionMaxTokens / 2 / (kAtOnce * kRowsOfPass);
  const int half_begin = rank * (padded / 2), half_end = half_begin + padded / 2;
  float logs[kLogs], products[kPasses];
  const auto prepare = [&](int of_head) {
    const auto [head, batch] = head_at(sizes, of_head);
#pragma unroll
    for (int n = 0; n < kLogs; ++n) {
      const int i = tid + n * kThreads;
      logs[n] = i < sizes.tokens ? sums[static_cast<size_t>(of_head) * sizes.tokens + i] * kLog2e : INFINITY;
    }
    const size_t start = (static_cast<size_t>(batch) * sizes.tokens * sizes.heads + head) * kHeadSize + tid % 8 * 8;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int first = half_begin + pass * kAtOnce * kRowsOfPass;
      if (first >= half_end) break;
      uint4 result[kAtOnce], result_grad[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int row = min(first + tid / 8 + n * kRowsOfPass, sizes.tokens - 1);
        const size_t place = start + static_cast<size_t>(row) * sizes.heads * kHeadSize;
        result[n] = *reinterpret_cast<const uint4*>(outs + place);
        result_grad[n] = *reinterpret_cast<const uint4*>(grads + place);
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {  // eight threads have a row, and each of them keeps the result of another one
        float product = product_of_packs<T>(result[n], result_grad[n]);
#pragma unroll
        for (int lanes = 1; lanes < 8; lanes *= 2) product += __shfl_xor_sync(~0u, product, lanes);
        if (tid % 8 == n) products[pass] = product;
      }
    }
  };
  const auto use_prepared = [&] {
#pragma unroll
    for (int n = 0; n < kLogs; ++n) {
      const int i = tid + n * kThreads;
      if (i < padded) number[(i & ~1) * 2 + (i & 1)] = logs[n];
    }
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = half_begin + tid / 8 + (pass * kAtOnce + tid % 8) * kRowsOfPass;
      if (row >= half_end) break;
      float* const place = number + (row & ~1) * 2 + 2 + (row & 1);
      *place = row < sizes.tokens ? -products[pass] : 0.f;
      store_in_block(place_in_block(place, rank ^ 1), *place);
    }
  };

  int index = static_cast<int>(blockIdx.x) / kBlocks, steps = 0, tiles_of_keys = 0;
  if (tid == 0) {
    for (int i = 0; i < 2; ++i) {
      init_barrier(queries_there + 8 * i, 2);
      init_barrier(keys_there + 8 * i, 2);
      init_barrier(queries_gone + 8 * i, kWarps);
      init_barrier(keys_gone + 8 * i, kWarps);
      init_barrier(scores_there + 8 * i, kWarps);
      init_barrier(scores_gone + 8 * i, kWarps);
    }
    fence_barriers();
    fence_async();
  }
  __syncthreads();
  if (loads >= 0) {
    const auto [head, batch] = head_at(sizes, index);
    cursor->queries = cursor->keys = {rank, index, head, batch};
    cursor->first = rank;
    load_keys(next_of_keys(), 0);
    load_queries(next_of_queries(), 0);
    load_queries(next_of_queries(), 1);
    load_keys(next_of_keys(), 1);
  }
  __syncwarp();
  prepare(index);
  sync_cluster();
  use_prepared();
  arrive_at_cluster();
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
    wait_for_cluster();
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
            put_four(to + c * 128, dq + 4 * c);
          else
            add_four(to + c * 128, dq + 4 * c);
        }
      };
      // Gradients of the queries of the step before.
      const auto multiply_keys = [&] {
        wait_for_barrier(scores_there + 8 * (~steps & 1), steps - 1 >> 1 & 1);
        begin_products();
        mix_keys<T>(dq, scores + (~steps & 1) * 2 * kTileBytes + group * kTileBytes, k);
        commit_products();
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
        // Of 16: exponentials that are computed while numbers for the product behind them come.
        constexpr int kBeforeProducts = 4;
        const float2* const of_queries = numbers + i * kTile + (lane & 3) * 2;
#pragma unroll
        for (int j = 0; j < 16; ++j) {  // what is subtracted from the gradients of weights
          const float2 product = of_queries[8 * j + 1];
          d[4 * j] = d[4 * j + 2] = product.x;
          d[4 * j + 1] = d[4 * j + 3] = product.y;
        }
        pin(d);
        if constexpr (kFirst) hide_later<true>(s, group * 64 + 16 * warp + lane / 4, lane);
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          if (j == kBeforeProducts) {
            pin_first<2 * kBeforeProducts>(p);
            begin_products();
            multiply_tiles<T>(d, v + group * kHalfBytes, g, 1);
            commit_products();
          }
          const float2 top = of_queries[8 * j];
          p[2 * j] = packed_pair<T>(power_of_two(fmaf(s[4 * j], scale, -top.x)),
                                    power_of_two(fmaf(s[4 * j + 1], scale, -top.y)));
          p[2 * j + 1] = packed_pair<T>(power_of_two(fmaf(s[4 * j + 2], scale, -top.x)),
                                        power_of_two(fmaf(s[4 * j + 3], scale, -top.y)));
        }
        pin(p);
        begin_products();
        mix_queries<T>(dv, p, g, kFirst ? 0 : 1);
        commit_products();
        if constexpr (!kFirst) multiply_keys();
        wait_for_products<kFirst ? 1 : 2>();
        pin(d);
        wait_for_barrier(scores_gone + 8 * (steps & 1), (steps >> 1 & 1) ^ 1);
        {
          const int row = group * 64 + 16 * warp + (lane & 15), part = lane >> 4;
#pragma unroll
          for (int j = 0; j < 16; ++j) {
            e[2 * j] = gradient_of_scores<T>(p[2 * j], d[4 * j], d[4 * j + 1]);
            e[2 * j + 1] = gradient_of_scores<T>(p[2 * j + 1], d[4 * j + 2], d[4 * j + 3]);
            if (j % 2 == 1)
              store_matrices(own_scores + j / 8 * kTileBytes + row * 128 + (((j % 8 - 1 + part) ^ (row & 7)) << 4),
                             e[2 * j - 2], e[2 * j - 1], e[2 * j], e[2 * j + 1]);
          }
        }
        fence_async();
        __syncwarp();
        if (lane == 0) arrive_at(scores_there + 8 * (steps & 1));
        if (!ends || (next_keys(keys) < tiles || index + clusters < sizes.total)) {
          wait_for_barrier(queries_there + 8 * (~steps & 1), steps + 1 >> 1 & 1);
          if (ends) wait_for_barrier(keys_there + 8 * (~tiles_of_keys & 1), tiles_of_keys + 1 >> 1 & 1);
        }
        wait_for_products<0>();
        pin(dv);
        pin(p);
        if constexpr (!kFirst) {
          pin(dq);
          if (lane == 0) arrive_at(scores_gone + 8 * (~steps & 1));
        }
        pin(e);
        begin_products();
        mix_queries<T>(dk, e, q, kFirst ? 0 : 1);
        multiply_tiles<T>(s, (ends ? k_after : k) + group * kHalfBytes,
                          base + kQueriesAt + (~steps & 1) * 2 * kTileBytes);
        commit_products();
        if constexpr (!kFirst) add_queries(i - 1);
        if constexpr (kFirst) {
          if (leads && keys != rank) {  // gradients of the keys before these
            wait_until_read();
            arrive_at(scores_gone + 8 * (~steps & 1));
          }
        }
        wait_for_products<0>();
        pin(dk);
        pin(e);
        pin(s);
        if (lane == 0) arrive_at(queries_gone + 8 * (steps & 1));
        if (loads >= 0) {
          wait_for_barrier(queries_gone + 8 * (steps & 1), steps >> 1 & 1);
          load_queries(next_of_queries(), steps);
        }
        __syncwarp();
        ++steps;
      };
      run_step(keys, std::true_type());
      for (int i = keys + 1; i < tiles; ++i) run_step(i, std::false_type());
      multiply_keys();
      wait_for_products<0>();
      pin(dq);
      if (lane == 0) arrive_at(keys_gone + 8 * (tiles_of_keys & 1));
      add_queries(tiles - 1);
      if (lane == 0 && warp != 0) arrive_at(scores_gone + 8 * (~steps & 1));
      if (loads >= 0) {
        wait_for_barrier(keys_gone + 8 * (tiles_of_keys & 1), tiles_of_keys >> 1 & 1);
        load_keys(next_of_keys(), tiles_of_keys);
      }
      sync_threads(2 + group, 128);
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
    if (leads) {
      wait_until_read();
      arrive_at(scores_gone + 8 * (~steps & 1));
    }
    __threadfence();
    __syncwarp();
    arrive_at_cluster();
    const bool more = index + clusters < sizes.total;
    if (more) prepare(index + clusters);
    wait_for_cluster();
    if (more) use_prepared();
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
    __syncwarp();
    arrive_at_cluster();
  }
  wait_for_cluster();
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
  CUtensorMap qkv, grad, qkv_grad;
  for (const auto error :
       {allow_shared_memory(causal_attention_backward<T, kColumns>, shared),
        box_map(qkv, launch.qkv, of, 3 * launch.heads, kTile), box_map(grad, launch.grad, of, launch.heads, kTile),
        box_map(qkv_grad, launch.qkv_grad, of, 3 * launch.heads, 64)})
    if (error != cudaSuccess) return error;
  const int total = launch.batch * launch.heads;
  // The question takes some microseconds: a thread keeps the last answer.
  thread_local struct { int device = -1, shared = 0, most = 0; } known;
  int device = 0;
  if (const auto error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (known.device != device || known.shared != shared) {
    if (const auto error = most_clusters(causal_attention_backward<T, kColumns>, shared, known.most);
        error != cudaSuccess)
      return error;
    known.device = device, known.shared = shared;
  }
  const auto blocks = static_cast<unsigned>(kBlocks * std::min({total, known.most, launch.processors / kBlocks}));
  const LaunchShape shape{.grid = blocks,
                          .block = kThreads,
                          .shared_bytes = static_cast<size_t>(shared),
                          .early = false,
                          .cluster = kBlocks};
  const auto error = launch_early(causal_attention_backward<T, kColumns>, shape, stream, qkv, grad, qkv_grad,
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
