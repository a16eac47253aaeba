// Attention of one token over its cache where several query heads share keys. Tensor cores multiply the queries of such
// a group with 16 keys of a warp at a time, so that the time is that of reading keys and values.
//
// Queries are the rows of the instruction (8 of its 16), lane 4 g + t has those of head g. Which dimension is which k
// of the instruction is free as long as queries and keys agree: every lane takes eight consecutive ones, in one load.
// Of the values a lane reads four keys, and pairs them in registers.
#include "levin/kernels/decode/decode_device.cuh"
#include "levin/kernels/early_start.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kKeys = 16;

/// c += a b; rows 8 to 15 of a are zeros.
__device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1, __half) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%5}, {%7,%8}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1,
                                         __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%5}, {%7,%8}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1));
}

template <class T>
using Eight = Pack<T, 8>;

/// Puts the key and the value of this token into the cache, where the threads of the block read them.
template <class T>
__device__ __forceinline__ void append_token(const DecodeLaunch& a, int row, int kv, int64_t position) {
  const int64_t of_head = static_cast<int64_t>(kv) * a.width, place = slot_of(a, row, kv, position) * a.width;
  for (int column = static_cast<int>(threadIdx.x) * 8; column < a.width; column += kThreads * 8) {
    float turned[8];
    load_turned(a, static_cast<const T*>(a.k) + row * a.k_stride + of_head, column, position, turned);
    store_packed<T, 8>(a.keys, place + column, turned);
    store<T, 8>(a.values, place + column, load<T, 8>(a.v, row * a.v_stride + of_head + column));
  }
}

/// A block takes the queries of one head of keys, and one part of the keys.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, 2) decode_groups_kernel(const DecodeLaunch a) {
  let_next_start();
  wait_for_previous();
  constexpr int kParts = kWidth / 32, kHalves = kWidth / 64;
  __shared__ float mixed_of[kWarps][kMostOfGroup][kWidth];
  __shared__ float most_of[kWarps][kMostOfGroup], sum_of[kWarps][kMostOfGroup];
  const int split = static_cast<int>(blockIdx.x), kv = static_cast<int>(blockIdx.y), row = static_cast<int>(blockIdx.z);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4, shared_by = a.heads / a.kv_heads;
  const bool has_head = g < shared_by;
  const int head = kv * shared_by + (has_head ? g : 0);

  const int64_t position = a.positions[row], length = position + 1;
  const int64_t first = a.window > 0 && length > a.window ? length - a.window : 0;
  const int64_t each = (length - first + a.splits - 1) / a.splits;
  const int begin = static_cast<int>(first + split * each);
  const int end = static_cast<int>(begin + each < length ? begin + each : length);
  if (begin <= position && position < end) append_token<T>(a, row, kv, position);

  Eight<T> q[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    float turned[8] = {};
    if (has_head)
      load_turned(a, static_cast<const T*>(a.q) + row * a.q_stride + static_cast<int64_t>(head) * kWidth,
                  part * 32 + t * 8, position, turned);
    q[part] = packed<T, 8>(turned);
  }
  const int at = static_cast<int>(position);
  const float slope = a.slopes ? a.slopes[head] : 0.0f;
  __syncthreads();  // the token is in the cache

  float most = kLowest, sum = 0, mixed[kHalves][8][4] = {};
  for (int turn = begin + warp * kKeys; turn < end; turn += kWarps * kKeys) {
    Eight<T> k[2][kParts], v[4][kHalves];
    // Keys behind the end are read as the last, so that nothing is undefined; their scores are -inf.
    const auto place_of = [&](int key) { return slot_of(a, row, kv, key < end ? key : end - 1) * kWidth; };
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const int64_t place = place_of(turn + tile * 8 + g);
#pragma unroll
      for (int part = 0; part < kParts; ++part) k[tile][part] = load<T, 8>(a.keys, place + part * 32 + t * 8);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t place = place_of(turn + i / 2 * 8 + 2 * t + i % 2);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) v[i][half] = load<T, 8>(a.values, place + half * 64 + g * 8);
    }
    float scores[2][4] = {};
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int step = 0; step < 4; step += 2)
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
          multiply(scores[tile], q[part].pairs[step], q[part].pairs[step + 1], k[tile][part].pairs[step],
                   k[tile][part].pairs[step + 1], T());
    float highest = most;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = turn + tile * 8 + 2 * t + i;
        float score = scores[tile][i] * a.scale;
        if (a.softcap > 0) score = a.softcap * tanhf(score / a.softcap);
        score += slope * static_cast<float>(key - at);
        scores[tile][i] = key < end ? score : kLowest;
        highest = fmaxf(highest, scores[tile][i]);
      }
    highest = quad_maximum(highest);
    const float by = finite(highest), shrink = __expf(most - by);
    most = highest;
    sum *= shrink;
    uint32_t weights[2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const float low = __expf(scores[tile][0] - by), high = __expf(scores[tile][1] - by);
      sum += low + high;
      weights[tile] = packed_pair<T>(low, high);
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const unsigned which = j % 2 == 0 ? 0x5410 : 0x7632;
        mixed[half][j][0] *= shrink;
        mixed[half][j][1] *= shrink;
        multiply(mixed[half][j], weights[0], weights[1],
                 __byte_perm(v[0][half].pairs[j / 2], v[1][half].pairs[j / 2], which),
                 __byte_perm(v[2][half].pairs[j / 2], v[3][half].pairs[j / 2], which), T());
      }
  }
  sum = quad_sum(sum);
  if (t == 0) most_of[warp][g] = most, sum_of[warp][g] = sum;
#pragma unroll
  for (int half = 0; half < kHalves; ++half)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) mixed_of[warp][g][half * 64 + (2 * t + i) * 8 + j] = mixed[half][j][i];
  __syncthreads();
  join_warps<T, kWarps, kMostOfGroup, kWidth, kThreads>(a, row, kv * shared_by, shared_by, split, most_of, sum_of,
                                                        mixed_of);
}

template <class T>
void launch_for(const DecodeLaunch& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(a.kv_heads), static_cast<unsigned>(a.rows));
  launch_early(a.width == 64 ? decode_groups_kernel<T, 64> : decode_groups_kernel<T, 128>, {grid, kThreads}, stream, a);
}

}  // namespace

void launch_decode_groups(const DecodeLaunch& a, CUstream_st* stream) {
  if (a.type == NumberType::kHalf)
    launch_for<__half>(a, stream);
  else
    launch_for<__nv_bfloat16>(a, stream);
}

}  // namespace levin::kernels::detail
