#include <algorithm>
#include <cmath>
#include <type_traits>

#include "levin/kernels/attention/attention_hopper.cuh"
#include "levin/kernels/attention/causal_attention_launch.h"
#include "levin/kernels/packs.cuh"

// Causal attention. A block takes 256 queries of a head, then others; each of four warpgroups has a tile of 64 of them.
// Tiles of keys and values come through a ring in shared memory, for all of them; a fifth one loads. While one group
// computes exponentials others multiply: they run apart, by some tiles.
//
// Exponentials are relative to the largest score of the first tile of keys. That is as exact as the largest of all, as
// long as nothing overflows; where it would, a tile is computed again with the largest score so far.
namespace levin::kernels::detail {
namespace {

constexpr int kGroups = 4;                     // warpgroups
constexpr int kThreads = (kGroups + 1) * 128;  // one more loads
constexpr int kTile = 64, kTileBytes = kTile * 128;
constexpr int kDepth = 8;  // tiles of keys and values in shared memory

// Shared memory: queries of each warpgroup and its next ones, keys and values. Results go where the queries were.
constexpr int kKeysAt = 2 * kGroups * kTileBytes;
constexpr int kShared = 1024 + kKeysAt + kDepth * 2 * kTileBytes;

/// What a block works on in a round: queries that see many keys come first, so that all blocks end together.
struct Item {
  int part, index;  // of 256 queries; the head
};

/// The largest sum of a thread's exponentials of a tile that its numbers can hold.
template <class T>
constexpr float kMost = kIsHalf<T> ? 16384.f : 0x1p60f;

/// Matrices are those of matrix_at; `keys` and `values` are the same in a warp.
template <class T>
__device__ __forceinline__ void multiply_queries(float (&d)[32], uint64_t queries, uint64_t keys) {
#pragma unroll
  for (int n = 0; n < 4; ++n)
    product_of_rows_64x64<T>(d, queries + matrix_offset(32 * n), keys + matrix_offset(32 * n), n);
}
/// `adds`: to what is there.
template <class T>
__device__ __forceinline__ void mix_values(float (&d)[32], const uint32_t (&p)[16], uint64_t values, int adds) {
#pragma unroll
  for (int n = 0; n < 4; ++n) product_64x64<T>(d, p, 4 * n, values + matrix_offset(2048 * n), adds | n);
}

/// The largest score of two rows.
__device__ __forceinline__ void find_tops(float (&tops)[2], const float (&s)[32]) {
  tops[0] = tops[1] = -INFINITY;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    tops[0] = fmaxf(tops[0], fmaxf(s[4 * j], s[4 * j + 1]));
    tops[1] = fmaxf(tops[1], fmaxf(s[4 * j + 2], s[4 * j + 3]));
  }
  tops[0] = quad_maximum(tops[0]);
  tops[1] = quad_maximum(tops[1]);
}

/// s becomes 2^(s * scale - top); the sums of this thread's.
__device__ __forceinline__ void exponentiate(float (&s)[32], float (&sums)[2], float scale, const float (&tops)[2]) {
  sums[0] = sums[1] = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float &a = s[4 * j + 2 * r], &b = s[4 * j + 2 * r + 1];
      a = power_of_two(fmaf(a, scale, -tops[r]));
      b = power_of_two(fmaf(b, scale, -tops[r]));
      sums[r] += a + b;
    }
}

template <class T>
__global__ __launch_bounds__(kThreads, 1) void causal_attention_forward(const __grid_constant__ CUtensorMap qkv,
                                                                        const __grid_constant__ CUtensorMap out,
                                                                        float* sums, const Sizes sizes) {
  extern __shared__ char memory[];
  __shared__ uint64_t barriers[2 * (kDepth + 2 * kGroups)];
  const int group = static_cast<int>(same_in_warp(threadIdx.x / 128)), warp = threadIdx.x % 128 / 32,
            lane = threadIdx.x % 32;
  const uint32_t base = (shared_address(memory) + 1023) & ~1023u;
  // Keys and values of a place, queries of a group: that they are there, and that nobody needs them any more.
  const uint32_t keys_there = shared_address(barriers), keys_gone = keys_there + 8 * kDepth;
  const uint32_t queries_there = keys_gone + 8 * kDepth, queries_gone = queries_there + 16 * kGroups;
  const int tiles = (sizes.tokens + kTile - 1) / kTile, parts = (tiles + kGroups - 1) / kGroups;
  const int items = parts * sizes.total, blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);

  // Every other round goes backward through the blocks: who had more gets less.
  const auto number_of = [&](int round) { return round * blocks + (round & 1 ? blocks - 1 - block : block); };
  const auto item_of = [&](int round) {
    const int number = number_of(round), part = number / sizes.total;
    return Item{parts - 1 - part, number - part * sizes.total};
  };
  const auto steps_of = [&](const Item& item) { return min(kGroups * (item.part + 1), tiles); };
  // Of a group; the first one has less to do in one round and more in the next. It may be behind the last token.
  const auto tile_of = [&](const Item& item, int round, int of_group) {
    return item.part * kGroups + (round & 1 ? kGroups - 1 - of_group : of_group);
  };

  if (threadIdx.x == 0) {
    for (int i = 0; i < kDepth; ++i) {
      init_barrier(keys_there + 8 * i, 1);
      init_barrier(keys_gone + 8 * i, 4 * kGroups);
    }
    for (int i = 0; i < 2 * kGroups; ++i) {
      init_barrier(queries_there + 8 * i, 1);
      init_barrier(queries_gone + 8 * i, 1);
    }
    fence_barriers();
    fence_async();
  }
  __syncthreads();

  if (group == kGroups) {
    give_registers<32>();
    if (warp != 0 || lane != 0) return;
    unsigned count = 0;
    for (int round = 0; number_of(round) < items; ++round) {
      const Item item = item_of(round);
      const auto [head, batch] = head_at(sizes, item.index);
      for (int i = 0; i < kGroups; ++i) {
        const int place = 2 * i + (round & 1);
        if (round > 1) wait_for_barrier(queries_gone + 8 * place, round / 2 - 1 & 1);
        expect_bytes(queries_there + 8 * place, kTileBytes);
        load_box(base + place * kTileBytes, qkv, queries_there + 8 * place, tile_of(item, round, i) * kTile, head,
                 batch);
      }
      for (int step = 0; step < steps_of(item); ++step, ++count) {
        const unsigned place = count % kDepth;
        if (count >= kDepth) wait_for_barrier(keys_gone + 8 * place, count / kDepth - 1 & 1);
        const uint32_t to = base + kKeysAt + place * 2 * kTileBytes, there = keys_there + 8 * place;
        expect_bytes(there, 2 * kTileBytes);
        load_box(to, qkv, there, step * kTile, sizes.heads + head, batch);
        load_box(to + kTileBytes, qkv, there, step * kTile, 2 * sizes.heads + head, batch);
      }
    }
    return;
  }

  take_registers<112>();
  const bool leads = threadIdx.x % 128 == 0;
  const float scale = sizes.scale * kLog2e;
  unsigned count = 0;  // of tiles of keys
  const auto keys_at = [&](unsigned which) {
    return matrix_at(same_in_warp(base + kKeysAt + which % kDepth * 2 * kTileBytes));
  };
  const auto wait_for_keys = [&] { wait_for_barrier(keys_there + 8 * (count % kDepth), count / kDepth & 1); };
  const auto release = [&](unsigned which) {
    if (lane == 0) arrive_at(keys_gone + 8 * (which % kDepth));
  };
  for (int round = 0; number_of(round) < items; ++round) {
    const Item item = item_of(round);
    const int tile = tile_of(item, round, group), steps = steps_of(item);
    int step = 0;
    const int place_of_queries = 2 * group + (round & 1);
    const uint32_t q = same_in_warp(base + static_cast<uint32_t>(place_of_queries) * kTileBytes);
    wait_for_barrier(queries_there + 8 * place_of_queries, round / 2 & 1);
    if (tile < tiles) {
      float s[32], o[32], tops[2], all[2] = {};
      uint32_t p[16];
      const auto run_step = [&](auto is_first) {
        constexpr bool kFirst = decltype(is_first)::value;
        const uint64_t k = keys_at(count);
        wait_for_keys();
        ++count;
        begin_products();
        multiply_queries<T>(s, matrix_at(q), k);
        commit_products();
        if constexpr (!kFirst) {
          mix_values<T>(o, p, keys_at(count - 2) + matrix_offset(kTileBytes), step - 1);
          commit_products();
        }
        wait_for_products<kFirst ? 0 : 1>();
        pin(s);
        if (step == tile) hide_later<false>(s, 16 * warp + lane / 4, lane);
        if constexpr (kFirst) {
          find_tops(tops, s);
          tops[0] *= scale, tops[1] *= scale;
        }
        float own[2];
        exponentiate(s, own, scale, tops);
        bool overflows = false;
        if constexpr (!kFirst) {
          wait_for_products<0>();
          pin(o);
          pin(p);
          release(count - 2);
          overflows = any_of_threads(1 + group, 128, !(own[0] < kMost<T> && own[1] < kMost<T>));
        }
        if (overflows) {
          begin_products();
          multiply_queries<T>(s, matrix_at(q), k);
          commit_products();
          wait_for_products<0>();
          pin(s);
          if (step == tile) hide_later<false>(s, 16 * warp + lane / 4, lane);
          float now[2];
          find_tops(now, s);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float top = fmaxf(tops[r], now[r] * scale), share = power_of_two(tops[r] - top);
            tops[r] = top;
            all[r] *= share;
            scale_row(o, r, share);
          }
          exponentiate(s, own, scale, tops);
        }
        all[0] += own[0];
        all[1] += own[1];
#pragma unroll
        for (int j = 0; j < 16; ++j) p[j] = packed_pair<T>(s[2 * j], s[2 * j + 1]);
        pin(p);
        pin(o);
        ++step;
      };
      run_step(std::true_type());
      while (step <= tile) run_step(std::false_type());
      begin_products();
      mix_values<T>(o, p, keys_at(count - 1) + matrix_offset(kTileBytes), tile);
      commit_products();
      wait_for_products<0>();
      pin(o);
      pin(p);
      release(count - 1);
      const int rows = sizes.tokens - tile * kTile;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = quad_sum(all[r]), share = __fdividef(1.f, sum);
        const int row = 16 * warp + 8 * r + lane / 4;
        if ((lane & 3) == 0 && row < rows)
          sums[static_cast<size_t>(item.index) * sizes.tokens + tile * kTile + row] =
              (tops[r] + __log2f(sum)) * (1 / kLog2e);
        scale_row(o, r, share);
      }
      sync_threads(1 + group, 128);
      stage<T>(q, o, 1.f, warp, lane, rows);
      fence_async();
      sync_threads(1 + group, 128);
      if (leads) {
        const auto [head, batch] = head_at(sizes, item.index);
        store_box(out, q, tile * kTile, head, batch);
        commit_stores();
        wait_until_read();
      }
    }
    if (leads) arrive_at(queries_gone + 8 * place_of_queries);
    for (; step < steps; ++step) {  // what other groups see
      wait_for_keys();
      release(count++);
    }
  }
  if (leads) wait_until_stored();
}

template <class T>
int forward_of(const PackedAttentionLaunch& launch, cudaStream_t stream) {
  CUtensorMap qkv, out;
  for (const auto error : {allow_shared_memory(causal_attention_forward<T>, kShared),
                           box_map(qkv, launch.qkv, tensor_of(launch), 3 * launch.heads, kTile),
                           box_map(out, launch.out, tensor_of(launch), launch.heads, kTile)})
    if (error != cudaSuccess) return error;
  const int parts = (launch.tokens + kGroups * kTile - 1) / (kGroups * kTile);
  const int blocks = std::min(launch.processors, parts * launch.batch * launch.heads);
  causal_attention_forward<T>
      <<<blocks, kThreads, kShared, stream>>>(qkv, out, launch.sums, sizes_of(tensor_of(launch)));
  return cudaGetLastError();
}

}  // namespace

int launch_causal_attention(const PackedAttentionLaunch& launch, CUstream_st* stream) {
  return launch.half ? forward_of<__half>(launch, stream) : forward_of<__nv_bfloat16>(launch, stream);
}

}  // namespace levin::kernels::detail
