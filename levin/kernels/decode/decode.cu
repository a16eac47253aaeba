// One token of each row against its cached keys and values. The time is that of reading them: a group of threads takes
// a key, each thread 16 bytes of it, and all query heads that share the key use what was read.
#include <cuda_fp8.h>

#include "levin/kernels/decode/decode_device.cuh"
#include "levin/kernels/early_start.cuh"
#include "levin/kernels/number_switch.cuh"

namespace levin::kernels::detail {
namespace {

/// Keys or values of a head as numbers of the type of the queries. The kernel of attention appends them itself.
template <class T>
struct Numbers {
  static constexpr bool kAppends = true;
  using Raw = Pack<T, kDecodeDims>;
  static __device__ __forceinline__ Raw read(const void* from, int64_t at) { return load<T, kDecodeDims>(from, at); }
  static __device__ __forceinline__ void widen(const Raw& raw, const DecodeLaunch&, float* out) {
    unpack<T, kDecodeDims>(raw, out);
  }
  static __device__ __forceinline__ float scale(const float*, int64_t) { return 1.0f; }
};

/// The same as bytes, with a scale for each head.
struct Bytes {
  static constexpr bool kAppends = false;
  using Raw = uint2;
  static __device__ __forceinline__ Raw read(const void* from, int64_t at) {
    return *reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(from) + at);
  }
  static __device__ __forceinline__ void widen(const Raw& raw, const DecodeLaunch& a, float* out) {
    const unsigned words[2] = {raw.x, raw.y};
#pragma unroll
    for (int d = 0; d < kDecodeDims; d += 2) {
      const unsigned pair = words[d / 4] >> (8 * (d % 4)) & 0xffffu;
      if (a.kept == KeptAs::kInt8) {
        out[d] = static_cast<float>(static_cast<int8_t>(pair & 0xffu));
        out[d + 1] = static_cast<float>(static_cast<int8_t>(pair >> 8));
      } else {
        const __half2_raw both = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
        const float2 wide = __half22float2(__half2(both));
        out[d] = wide.x;
        out[d + 1] = wide.y;
      }
    }
  }
  static __device__ __forceinline__ float scale(const float* scales, int64_t slot) {
    return scales[slot];
  }
};

/// The largest of the non-negative numbers of a block of up to 128 threads, for all of them.
__device__ __forceinline__ float largest_of_block(float value) {
  __shared__ float of_warp[4];
#pragma unroll
  for (int other = 16; other > 0; other /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, other));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  for (unsigned w = 0; w < blockDim.x / 32; ++w) value = fmaxf(value, of_warp[w]);
  return value;
}

/// The numbers of a head as bytes, and their scale.
__device__ void keep_bytes(const DecodeLaunch& a, const float* numbers, float most, void* to, float* scales,
                           int64_t slot) {
  const float bound = a.kept == KeptAs::kInt8 ? 127.0f : 448.0f;
  const float all = largest_of_block(most), scale = all == 0.0f ? 1.0f : __fdiv_rn(all, bound);
  for (int d = static_cast<int>(threadIdx.x); d < a.width; d += static_cast<int>(blockDim.x)) {
    const float x = fminf(fmaxf(__fdiv_rn(numbers[d], scale), -bound), bound);
    uint8_t* byte = static_cast<uint8_t*>(to) + slot * a.width + d;
    *byte = a.kept == KeptAs::kInt8 ? static_cast<uint8_t>(static_cast<int8_t>(rintf(x)))
                                    : static_cast<uint8_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
  }
  if (threadIdx.x == 0) scales[slot] = scale;
}

/// Of a cache of bytes: a block for each head of queries, keys and values of a row.
template <class T>
__global__ void decode_append_kernel(const DecodeLaunch a) {
  let_next_start();
  wait_for_previous();
  __shared__ float bytes_of[kWidestHead];
  const int head = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  const int64_t position = a.positions[row];
  const bool is_q = head < a.heads, is_k = !is_q && head < a.heads + a.kv_heads;
  const int own = is_q ? head : is_k ? head - a.heads : head - a.heads - a.kv_heads;
  const T* from = static_cast<const T*>(is_q   ? a.q
                                        : is_k ? a.k
                                               : a.v) +
                  row * (is_q   ? a.q_stride
                         : is_k ? a.k_stride
                                : a.v_stride) +
                  static_cast<int64_t>(own) * a.width;
  const int64_t slot = is_q ? 0 : slot_of(a, row, own, position);
  T* to = static_cast<T*>(a.turned) + (static_cast<int64_t>(row) * a.heads + own) * a.width;
  const int turned = a.angles && (is_q || is_k) ? 2 * a.half : 0;
  const float* cosine = a.angles + position * a.half;
  const float* sine = cosine + a.angle_rows * a.half;
  float most = 0;
  for (int d = static_cast<int>(threadIdx.x); d < a.width; d += static_cast<int>(blockDim.x)) {
    T value = from[d];
    if (d < turned) {
      const bool is_first = d < a.half;
      const int angle = is_first ? d : d - a.half;
      const float x = widened(value), other = widened(from[is_first ? d + a.half : angle]);
      const float c = cosine[angle], s = sine[angle];
      value = narrowed<T>(is_first ? x * c - other * s : x * c + other * s);
    }
    if (is_q) {
      to[d] = value;
    } else {
      bytes_of[d] = widened(value);
      most = fmaxf(most, fabsf(bytes_of[d]));
    }
  }
  if (!is_q) keep_bytes(a, bytes_of, most, is_k ? a.keys : a.values, is_k ? a.key_scales : a.value_scales, slot);
}

/// What a group of threads has seen so far of kHeads queries: maxima, sums and its part of the mixed values.
template <int kHeads>
struct Seen {
  float most[kHeads], sum[kHeads], mixed[kHeads][kDecodeDims];
};

/// kLanes threads take a key; a block takes kHeads query heads of one head of keys, and one part of the keys.
template <class T, class Kept, int kHeads, int kLanes, int kThreads>
__global__ void __launch_bounds__(kThreads, kHeads == 1 && kThreads == kDecodeThreads ? 5 : 1)
    decode_attention_kernel(const DecodeLaunch a) {
  let_next_start();
  if (!Kept::kAppends || !a.early_cache) wait_for_previous();
  constexpr int kWarps = kThreads / 32, kGroups = kThreads / kLanes, kKeys = kHeads > 4 ? 2 : 4;
  __shared__ float mixed_of[kWarps][kHeads][kLanes * kDecodeDims];
  __shared__ float most_of[kWarps][kHeads], sum_of[kWarps][kHeads];
  const int split = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.z);
  const int kv = static_cast<int>(blockIdx.y) % a.kv_heads, part = static_cast<int>(blockIdx.y) / a.kv_heads;
  const int shared_by = a.heads / a.kv_heads, first_head = part * kHeads;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, group = static_cast<int>(threadIdx.x) / kLanes;
  const int column = lane * kDecodeDims;
  const bool has_columns = column < a.width;

  const int64_t position = a.positions[row], length = position + 1;
  const int64_t first = a.window > 0 && length > a.window ? length - a.window : 0;
  const int64_t each = (length - first + a.splits - 1) / a.splits;
  const int64_t begin = first + split * each, end = begin + each < length ? begin + each : length;

  const int from_column = has_columns ? column : 0;
  typename Kept::Raw k[kKeys], v[kKeys];
  float k_scale[kKeys], v_scale[kKeys];
  const auto read = [&](int64_t key) {
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      // A key behind the end is read again, so that nothing is undefined; its score is -inf.
      const int64_t safe = key + u < end ? key + u : end - 1;
      const int64_t slot = slot_of(a, row, kv, safe), at = slot * a.width + from_column;
      k[u] = Kept::read(a.keys, at);
      v[u] = Kept::read(a.values, at);
      k_scale[u] = Kept::scale(a.key_scales, slot);
      v_scale[u] = Kept::scale(a.value_scales, slot);
    }
  };
  if (begin < end) read(begin + group * kKeys);
  const auto angles = Kept::kAppends ? angles_of(a, from_column, position) : Angles{};
  wait_for_previous();  // queries, and the key and value of this token

  const auto query_head = [&](int h) { return kv * shared_by + (first_head + h < shared_by ? first_head + h : 0); };
  const auto query = [&](int h) {
    return static_cast<const T*>(a.q) + row * a.q_stride + static_cast<int64_t>(query_head(h)) * a.width;
  };
  const int64_t of_kv = static_cast<int64_t>(kv) * a.width;
  const T* key_from = static_cast<const T*>(a.k) + row * a.k_stride + of_kv;
  // All that is read of this token is on its way before anything waits for it.
  Unturned<T> raw_q[kHeads], raw_key;
  typename Kept::Raw own_key{}, own_value{};
  if constexpr (Kept::kAppends) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) raw_q[h] = load_unturned(a, query(h), from_column);
    raw_key = load_unturned(a, key_from, from_column);
    own_value = load<T, kDecodeDims>(a.v, row * a.v_stride + of_kv + from_column);
  }

  float q[kHeads][kDecodeDims], slope[kHeads];
  Seen<kHeads> seen;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const int head = query_head(h);
    slope[h] = a.slopes ? a.slopes[head] : 0.0f;
    seen.most[h] = kLowest;
    seen.sum[h] = 0;
#pragma unroll
    for (int d = 0; d < kDecodeDims; ++d) q[h][d] = 0, seen.mixed[h][d] = 0;
    if (first_head + h >= shared_by || !has_columns) continue;
    if constexpr (Kept::kAppends)
      turn(a, raw_q[h], query(h), column, position, angles, q[h]);
    else
      load_wide<kDecodeDims, T>(a.turned, (static_cast<int64_t>(row) * a.heads + head) * a.width + column, q[h]);
#pragma unroll
    for (int d = 0; d < kDecodeDims; ++d) q[h][d] *= a.scale;
  }

  // The key and the value of this token go into the cache, and are not read from there.
  if constexpr (Kept::kAppends) {
    float turned[kDecodeDims];
    turn(a, raw_key, key_from, from_column, position, angles, turned);
    own_key = packed<T, kDecodeDims>(turned);
    if (split == 0 && part == 0 && group == 0 && has_columns) {
      const int64_t place = slot_of(a, row, kv, position) * a.width + column;
      store<T, kDecodeDims>(a.keys, place, own_key);
      store<T, kDecodeDims>(a.values, place, own_value);
    }
  }
  // All threads of a warp take the same number of turns: they exchange sums.
  for (int64_t turn = begin; turn < end; turn += kGroups * kKeys) {
    const int64_t key = turn + group * kKeys;
    if (turn > begin) read(key);
    if constexpr (Kept::kAppends) {
#pragma unroll
      for (int u = 0; u < kKeys; ++u)
        if ((key + u < end ? key + u : end - 1) == position) k[u] = own_key, v[u] = own_value;
    }
    float scores[kKeys][kHeads];
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      float wide[kDecodeDims];
      Kept::widen(k[u], a, wide);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float dot = 0;
#pragma unroll
        for (int d = 0; d < kDecodeDims; ++d) dot += q[h][d] * wide[d];
#pragma unroll
        for (int other = kLanes / 2; other > 0; other /= 2) dot += __shfl_xor_sync(kAllLanes, dot, other);
        dot *= k_scale[u];
        if (a.softcap > 0) dot = a.softcap * tanhf(dot / a.softcap);
        dot += slope[h] * static_cast<float>(key + u - position);
        scores[u][h] = key + u < end ? dot : kLowest;
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float most = seen.most[h];
#pragma unroll
      for (int u = 0; u < kKeys; ++u) most = fmaxf(most, scores[u][h]);
      const float by = finite(most), shrink = __expf(seen.most[h] - by);
      seen.most[h] = most;
      seen.sum[h] *= shrink;
#pragma unroll
      for (int d = 0; d < kDecodeDims; ++d) seen.mixed[h][d] *= shrink;
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        scores[u][h] = __expf(scores[u][h] - by);
        seen.sum[h] += scores[u][h];
      }
    }
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      float wide[kDecodeDims];
      Kept::widen(v[u], a, wide);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float share = scores[u][h] * v_scale[u];
#pragma unroll
        for (int d = 0; d < kDecodeDims; ++d) seen.mixed[h][d] += share * wide[d];
      }
    }
  }

  // Groups of a warp, then warps of the block.
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int other = kLanes; other < 32; other *= 2) {
      const float their_most = __shfl_xor_sync(kAllLanes, seen.most[h], other);
      const float their_sum = __shfl_xor_sync(kAllLanes, seen.sum[h], other);
      const float most = fmaxf(seen.most[h], their_most), by = finite(most);
      const float mine = __expf(seen.most[h] - by), theirs = __expf(their_most - by);
      seen.most[h] = most;
      seen.sum[h] = seen.sum[h] * mine + their_sum * theirs;
#pragma unroll
      for (int d = 0; d < kDecodeDims; ++d) {
        const float their_mixed = __shfl_xor_sync(kAllLanes, seen.mixed[h][d], other);
        seen.mixed[h][d] = seen.mixed[h][d] * mine + their_mixed * theirs;
      }
    }
    if (threadIdx.x % 32 >= kLanes) continue;
    if (lane == 0) most_of[warp][h] = seen.most[h], sum_of[warp][h] = seen.sum[h];
#pragma unroll
    for (int d = 0; d < kDecodeDims; ++d) mixed_of[warp][h][column + d] = seen.mixed[h][d];
  }
  __syncthreads();
  join_warps<T, kWarps, kHeads, kLanes * kDecodeDims, kThreads>(
      a, row, kv * shared_by + first_head, shared_by - first_head, split, most_of, sum_of, mixed_of);
}

/// A block for each head of a row: its parts become one.
template <class T>
__global__ void decode_join_kernel(const DecodeLaunch a) {
  let_next_start();
  wait_for_previous();
  const int64_t head = static_cast<int64_t>(blockIdx.y) * a.heads + blockIdx.x;
  const int step = a.width + 2;
  const float* parts = a.partial + head * a.splits * step;
  float most = kLowest;
  for (int i = 0; i < a.splits; ++i) most = fmaxf(most, parts[i * step + a.width]);
  const float by = finite(most);
  for (int d = static_cast<int>(threadIdx.x); d < a.width; d += static_cast<int>(blockDim.x)) {
    float sum = 0, mixed = 0;
    for (int i = 0; i < a.splits; ++i) {
      const float share = __expf(parts[i * step + a.width] - by);
      sum += parts[i * step + a.width + 1] * share;
      mixed += parts[i * step + d] * share;
    }
    static_cast<T*>(a.out)[head * a.width + d] = narrowed<T>(mixed / sum);
  }
}

template <class T, class Kept, int kHeads, int kLanes, int kThreads = kDecodeThreads>
void attend(const DecodeLaunch& a, cudaStream_t stream) {
  const int parts = (a.heads / a.kv_heads + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(a.kv_heads * parts),
                  static_cast<unsigned>(a.rows));
  launch_early(decode_attention_kernel<T, Kept, kHeads, kLanes, kThreads>, {grid, kThreads}, stream, a);
}

template <class T>
void append(const DecodeLaunch& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(a.heads + 2 * a.kv_heads), static_cast<unsigned>(a.rows));
  launch_early(decode_append_kernel<T>, {grid, a.width <= 64 ? 64u : 128u}, stream, a);
}

template <class T, class Kept, int kLanes>
void attend_by_heads(const DecodeLaunch& a, cudaStream_t stream) {
  const int shared_by = a.heads / a.kv_heads;
  // Few keys of few heads: more threads, and nothing to join.
  if (a.wide && shared_by == 1) return attend<T, Kept, 1, kLanes, kWideDecodeThreads>(a, stream);
  if constexpr (kLanes <= 16)  // shared memory
    if (a.wide && shared_by <= 4) return attend<T, Kept, 4, kLanes, kWideDecodeThreads>(a, stream);
  if (shared_by == 1)
    attend<T, Kept, 1, kLanes>(a, stream);
  else if (shared_by <= 4)
    attend<T, Kept, 4, kLanes>(a, stream);
  else
    attend<T, Kept, 8, kLanes>(a, stream);
}

template <class T, class Kept>
void attend_by_width(const DecodeLaunch& a, cudaStream_t stream) {
  if (a.width <= 8 * kDecodeDims)
    attend_by_heads<T, Kept, 8>(a, stream);
  else if (a.width <= 16 * kDecodeDims)
    attend_by_heads<T, Kept, 16>(a, stream);
  else
    attend_by_heads<T, Kept, 32>(a, stream);
}

}  // namespace

int launch_decode_attention(const DecodeLaunch& a, CUstream_st* stream) {
  return launch_for_number(a.type, [&](auto number) {
    using T = typename decltype(number)::type;
    if (a.groups) {
      launch_decode_groups(a, stream);
    } else if (a.cluster) {
      launch_decode_cluster(a, stream);
    } else if (a.kept == KeptAs::kNumbers) {
      attend_by_width<T, Numbers<T>>(a, stream);
    } else {
      append<T>(a, stream);
      attend_by_width<T, Bytes>(a, stream);
    }
    if (a.splits > 1)
      launch_early(decode_join_kernel<T>, {dim3(static_cast<unsigned>(a.heads), static_cast<unsigned>(a.rows)), 128},
                   stream, a);
  });
}

}  // namespace levin::kernels::detail
