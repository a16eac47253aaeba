// One token of each row against few cached keys. Two blocks share out the keys of a head and exchange what they have
// seen through each other's shared memory: small blocks start while the kernel before them still runs, and nothing is
// left to join. Keys are read before the query is there.
#include "levin/kernels/cluster.cuh"
#include "levin/kernels/decode/decode_device.cuh"
#include "levin/kernels/early_start.cuh"
#include "levin/kernels/number_switch.cuh"

namespace levin::kernels::detail {
namespace {

// Measured on an H200 with 32 heads of 128 numbers: four blocks, or blocks of 128 threads, are slower in 16 bits.
constexpr int kBlocks = 2, kThreads = 256;

/// kLanes threads take a key, each of them kDecodeDims numbers; a cluster takes one head of a row.
template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads) decode_cluster_kernel(const DecodeLaunch a) {
#if __CUDA_ARCH__ >= 900
  let_next_start();
  arrive_at_cluster();  // nobody writes to a block that is not there yet
  if (!a.early_cache) wait_for_previous();
  constexpr int kWarps = kThreads / 32, kParts = kBlocks * kWarps;  // what each warp of the cluster has seen
  constexpr int kKeys = 4;                                          // of a group of threads, at once
  constexpr int kGroups = kThreads / kLanes, kSlice = kLanes * kDecodeDims / kBlocks;
  constexpr int kStride = kBlocks * kGroups;  // keys of a cluster, one for each group
  // Of the columns of this block: what the warps of all blocks have mixed, and maxima and sums.
  __shared__ __align__(16) float mixed_of[kParts][kSlice];
  __shared__ __align__(8) float2 seen_of[kParts];
  using Raw = Pack<T, kDecodeDims>;
  const int block = block_of_cluster(), head = static_cast<int>(blockIdx.y), row = static_cast<int>(blockIdx.z);
  const int lane = static_cast<int>(threadIdx.x) % kLanes, group = static_cast<int>(threadIdx.x) / kLanes;
  const int own_column = lane * kDecodeDims, column = own_column < a.width ? own_column : 0;
  const auto position = static_cast<int>(a.positions[row]);
  const int end = position + 1;
  const int first = a.window > 0 && end > a.window ? end - static_cast<int>(a.window) : 0;
  const int mine = first + block * kGroups + group;
  const auto ask_cache_for = [](const void* place) { asm volatile("prefetch.global.L2 [%0];" ::"l"(place)); };
  const auto place_of = [&](int key) {
    // A key behind the end is read again, so that nothing is undefined; its score is -inf.
    return slot_of(a, row, head, key < end ? key : position) * a.width + column;
  };

  Raw k[kKeys], v[kKeys];
  const auto read = [&](int from) {
#pragma unroll
    for (int u = 0; u < kKeys; ++u)
      if (first + from + u * kStride < end) {
        const int64_t at = place_of(mine + from + u * kStride);
        k[u] = load<T, kDecodeDims>(a.keys, at);
        v[u] = load<T, kDecodeDims>(a.values, at);
      }
  };
  read(0);
  for (int from = kKeys * kStride; first + from < end && from < 2 * kKeys * kStride; from += kStride) {
    const int64_t at = place_of(mine + from);
    ask_cache_for(static_cast<const T*>(a.keys) + at);
    ask_cache_for(static_cast<const T*>(a.values) + at);
  }
  const auto angles = angles_of(a, column, position);
  const float slope = a.slopes ? a.slopes[head] : 0.0f;
  wait_for_previous();  // queries, and the key and value of this token

  const int64_t of_head = static_cast<int64_t>(head) * a.width;
  const T* query_from = static_cast<const T*>(a.q) + row * a.q_stride + of_head;
  const T* key_from = static_cast<const T*>(a.k) + row * a.k_stride + of_head;
  const auto raw_query = load_unturned(a, query_from, column), raw_key = load_unturned(a, key_from, column);
  const Raw own_value = load<T, kDecodeDims>(a.v, row * a.v_stride + of_head + column);
  float q[kDecodeDims], turned[kDecodeDims];
  turn(a, raw_query, query_from, column, position, angles, q);
#pragma unroll
  for (int d = 0; d < kDecodeDims; ++d) q[d] = own_column < a.width ? q[d] * a.scale : 0;
  turn(a, raw_key, key_from, column, position, angles, turned);
  // The key and the value of this token go into the cache, and are not read from there.
  const Raw own_key = packed<T, kDecodeDims>(turned);
  if (block == 0 && group == 0 && own_column < a.width) {
    const int64_t at = slot_of(a, row, head, position) * a.width + column;
    store<T, kDecodeDims>(a.keys, at, own_key);
    store<T, kDecodeDims>(a.values, at, own_value);
  }

  float most = kLowest, sum = 0, mixed[kDecodeDims] = {};
  for (int from = 0; first + from < end; from += kKeys * kStride) {
    if (from > 0) read(from);
    float scores[kKeys];
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const int key = mine + from + u * kStride;
      scores[u] = kLowest;
      if (first + from + u * kStride >= end) continue;  // for all threads of the cluster
      if (key >= position) k[u] = own_key, v[u] = own_value;
      float wide[kDecodeDims], dot = 0;
      unpack<T, kDecodeDims>(k[u], wide);
#pragma unroll
      for (int d = 0; d < kDecodeDims; ++d) dot += q[d] * wide[d];
#pragma unroll
      for (int other = kLanes / 2; other > 0; other /= 2) dot += __shfl_xor_sync(kAllLanes, dot, other);
      if (a.softcap > 0) dot = a.softcap * tanhf(dot / a.softcap);
      if (a.slopes) dot += slope * static_cast<float>(key - position);
      if (key < end) scores[u] = dot;
    }
    float highest = most;
#pragma unroll
    for (int u = 0; u < kKeys; ++u) highest = fmaxf(highest, scores[u]);
    const float by = finite(highest), shrink = __expf(most - by);
    most = highest;
    sum *= shrink;
#pragma unroll
    for (int d = 0; d < kDecodeDims; ++d) mixed[d] *= shrink;
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      if (first + from + u * kStride >= end) continue;
      const float share = __expf(scores[u] - by);
      sum += share;
      float wide[kDecodeDims];
      unpack<T, kDecodeDims>(v[u], wide);
#pragma unroll
      for (int d = 0; d < kDecodeDims; ++d) mixed[d] += share * wide[d];
    }
  }
#pragma unroll
  for (int other = kLanes; other < 32; other *= 2) {
    const float their_most = __shfl_xor_sync(kAllLanes, most, other);
    const float their_sum = __shfl_xor_sync(kAllLanes, sum, other);
    const float highest = fmaxf(most, their_most), by = finite(highest);
    const float here = __expf(most - by), there = __expf(their_most - by);
    most = highest;
    sum = sum * here + their_sum * there;
#pragma unroll
    for (int d = 0; d < kDecodeDims; ++d)
      mixed[d] = mixed[d] * here + __shfl_xor_sync(kAllLanes, mixed[d], other) * there;
  }

  // Every block gets the columns that it finishes.
  const int warp = static_cast<int>(threadIdx.x) / 32, of_warp = static_cast<int>(threadIdx.x) % 32;
  const int part = block * kWarps + warp;
  wait_for_cluster();
  if (of_warp < kLanes) {
    const uint32_t there = place_in_block(&mixed_of[part][own_column % kSlice], own_column / kSlice);
    store_in_block(there, mixed[0], mixed[1], mixed[2], mixed[3]);
    store_in_block(there + 16, mixed[4], mixed[5], mixed[6], mixed[7]);
  }
  if (of_warp < kBlocks) store_in_block(place_in_block(&seen_of[part], of_warp), most, sum);
  arrive_at_cluster();
  wait_for_cluster();

  constexpr int kEach = kThreads / kSlice;  // threads of a column
  const int at = static_cast<int>(threadIdx.x) / kEach, begin = static_cast<int>(threadIdx.x) % kEach;
  float2 seen[kParts / kEach];
  float highest = kLowest;
#pragma unroll
  for (int i = 0; i < kParts / kEach; ++i) {
    seen[i] = seen_of[begin + i * kEach];
    highest = fmaxf(highest, seen[i].x);
  }
#pragma unroll
  for (int other = kEach / 2; other > 0; other /= 2)
    highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, other));
  float all = 0, result = 0;
#pragma unroll
  for (int i = 0; i < kParts / kEach; ++i) {
    const float share = __expf(seen[i].x - highest);  // of a warp without keys 0
    all += seen[i].y * share;
    result += mixed_of[begin + i * kEach][at] * share;
  }
#pragma unroll
  for (int other = kEach / 2; other > 0; other /= 2) {
    all += __shfl_xor_sync(kAllLanes, all, other);
    result += __shfl_xor_sync(kAllLanes, result, other);
  }
  const int to = block * kSlice + at;
  if (begin == 0 && to < a.width)
    static_cast<T*>(a.out)[(static_cast<int64_t>(row) * a.heads + head) * a.width + to] = narrowed<T>(result / all);
#endif
}

template <class T, int kLanes>
void launch_lanes(const DecodeLaunch& a, cudaStream_t stream) {
  const dim3 grid(kBlocks, static_cast<unsigned>(a.heads), static_cast<unsigned>(a.rows));
  launch_early(decode_cluster_kernel<T, kLanes>, {.grid = grid, .block = kThreads, .cluster = kBlocks}, stream, a);
}

}  // namespace

void launch_decode_cluster(const DecodeLaunch& a, CUstream_st* stream) {
  with_number(a.type, [&](auto number) {
    using T = typename decltype(number)::type;
    if (a.width <= 8 * kDecodeDims)
      launch_lanes<T, 8>(a, stream);
    else if (a.width <= 16 * kDecodeDims)
      launch_lanes<T, 16>(a, stream);
    else
      launch_lanes<T, 32>(a, stream);
  });
}

}  // namespace levin::kernels::detail
