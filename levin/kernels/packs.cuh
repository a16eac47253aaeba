#pragma once

#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "levin/kernels/early_start.cuh"
#include "levin/kernels/number_type.h"
#include "levin/kernels/numbers.cuh"
#include "levin/kernels/whole_store.cuh"

/// Neighbouring numbers that move together, and sums over a row, for kernels whose time is that of the memory.
namespace levin::kernels::detail {

/// N numbers as they move: in one instruction, or in several of 16 bytes. Pairs of 16-bit numbers stay together in a
/// register, which a compiler does not do.
template <class T, int N, bool kPairs = sizeof(T) == 2 && N % 2 == 0>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T values[N];
};
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack<T, N, true> {
  uint32_t pairs[N / 2];
};

template <class T, int N, class A>
__device__ __forceinline__ void unpack(const Pack<T, N>& pack, A* out) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
      const float2 both = unpacked<T>(pack.pairs[k]);
      out[2 * k] = both.x;
      out[2 * k + 1] = both.y;
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = static_cast<A>(widened(pack.values[k]));
  }
}

template <class T, int N, class A>
__device__ __forceinline__ Pack<T, N> packed(const A* in) {
  Pack<T, N> pack;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    static_assert(std::is_same_v<A, float>);
#pragma unroll
    for (int k = 0; k < N / 2; ++k) pack.pairs[k] = packed_pair<T>(in[2 * k], in[2 * k + 1]);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) pack.values[k] = narrowed<T>(in[k]);
  }
  return pack;
}

template <class T, int N>
__device__ __forceinline__ Pack<T, N> load(const void* from, int64_t at) {
  return *reinterpret_cast<const Pack<T, N>*>(static_cast<const T*>(from) + at);
}
/// To global memory.
template <class T, int N>
__device__ __forceinline__ void store(void* to, int64_t at, const Pack<T, N>& pack) {
  store_whole(reinterpret_cast<Pack<T, N>*>(static_cast<T*>(to) + at), pack);
}
template <class T, int N, class A>
__device__ __forceinline__ void store_packed(void* to, int64_t at, const A* in) {
  store<T, N>(to, at, packed<T, N>(in));
}

/// To shared memory.
template <class T, int N, class A>
__device__ __forceinline__ void put_packed(T* to, int64_t at, const A* in) {
  *reinterpret_cast<Pack<T, N>*>(to + at) = packed<T, N>(in);
}

template <int N, class T, class A>
__device__ __forceinline__ void load_wide(const void* from, int64_t at, A* out) {
  unpack<T, N>(load<T, N>(from, at), out);
}

/// N neighbours of a dtype that is known when the kernel runs; for what is read once.
template <int N, class A>
__device__ __forceinline__ void load_any(const void* from, NumberType type, int64_t at, A* out) {
  switch (type) {
    case NumberType::kFloat:
      return load_wide<N, float>(from, at, out);
    case NumberType::kDouble:
      return load_wide<N, double>(from, at, out);
    case NumberType::kHalf:
      return load_wide<N, __half>(from, at, out);
    case NumberType::kBFloat16:
      return load_wide<N, __nv_bfloat16>(from, at, out);
    case NumberType::kNone:
      return;
  }
}

template <class A>
__device__ __forceinline__ A load_number(const void* from, NumberType type, int64_t at) {
  A out = 0;
  load_any<1>(from, type, at, &out);
  return out;
}

/// As load_any, of numbers at any address.
template <int N, class A>
__device__ __forceinline__ void load_any(const void* from, NumberType type, int64_t at, bool aligned, A* out) {
  if (aligned) return load_any<N>(from, type, at, out);
#pragma unroll
  for (int k = 0; k < N; ++k) load_any<1>(from, type, at + k, out + k);
}

template <class A>
__device__ __forceinline__ void store_number(void* to, NumberType type, int64_t at, A value) {
  switch (type) {
    case NumberType::kFloat:
      static_cast<float*>(to)[at] = static_cast<float>(value);
      return;
    case NumberType::kDouble:
      static_cast<double*>(to)[at] = static_cast<double>(value);
      return;
    case NumberType::kHalf:
      static_cast<__half*>(to)[at] = narrowed<__half>(value);
      return;
    case NumberType::kBFloat16:
      static_cast<__nv_bfloat16*>(to)[at] = narrowed<__nv_bfloat16>(value);
      return;
    case NumberType::kNone:
      return;
  }
}

/// Of the four lanes that have a row of a product's result.
__device__ __forceinline__ float quad_maximum(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFU, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFU, x, 2);
}

template <class A>
__device__ __forceinline__ A warp_sum(A value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  return value;
}

/// The sum over all threads of `warps` warps: over one warp, or a whole block that has as many. `slots` has room for 32
/// and is not used again before the block has met once more.
template <class A>
__device__ __forceinline__ A row_sum(A value, int warps, A* slots) {
  value = warp_sum(value);
  if (warps == 1) return value;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (lane == 0) slots[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? slots[lane] : A(0));
}

/// Blocks of large tensors begin at the end: what the kernel before wrote last is still in the cache.
__device__ __forceinline__ unsigned block_from_end() {
  return gridDim.x - 1 - blockIdx.x;
}

// ---- sums of columns

constexpr int kFinishColumns = 8, kFinishRows = 64;

/// Where sums of columns go, one list behind the other; null: nowhere.
struct SumTargets {
  void* to[3] = {};
  NumberType type[3] = {NumberType::kNone, NumberType::kNone, NumberType::kNone};
};

/// Adds up partial sums [parts, columns] of list blockIdx.y. It is launched early: the kernel before it lets it start.
template <class A>
__global__ void __launch_bounds__(kFinishColumns* kFinishRows)
    finish_column_sums(const A* partials, int64_t parts, int64_t columns, const SumTargets targets) {
  __shared__ A sums[kFinishRows][kFinishColumns];
  // Not by an index, which would take memory.
  const auto of_list = [](const auto& all) { return blockIdx.y == 0 ? all[0] : blockIdx.y == 1 ? all[1] : all[2]; };
  void* out = of_list(targets.to);
  wait_for_previous();
  if (out == nullptr) return;
  const A* list = partials + static_cast<int64_t>(blockIdx.y) * parts * columns;
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kFinishColumns + x;
  A sum = 0;
  if (column < columns)
    for (int64_t part = y; part < parts; part += kFinishRows) sum += list[part * columns + column];
  sums[y][x] = sum;
  __syncthreads();
#pragma unroll
  for (int half = kFinishRows / 2; half > 0; half /= 2) {
    if (y < half) sums[y][x] += sums[y + half][x];
    __syncthreads();
  }
  if (y == 0 && column < columns) store_number(out, of_list(targets.type), column, sums[0][x]);
}

template <class A>
inline void launch_finish(const A* partials, int64_t parts, int64_t columns, const SumTargets& targets,
                          cudaStream_t stream) {
  unsigned lists = 3;
  while (lists > 1 && targets.to[lists - 1] == nullptr) --lists;
  const dim3 grid(static_cast<unsigned>((columns + kFinishColumns - 1) / kFinishColumns), lists);
  launch_early(finish_column_sums<A>, {grid, dim3(kFinishColumns, kFinishRows)}, stream, partials, parts, columns,
               targets);
}

// ---- random numbers

/// Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011): four numbers for a counter.
__device__ __forceinline__ uint4 philox(uint64_t key, uint64_t low, uint64_t high) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint4 c = make_uint4(static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
                       static_cast<uint32_t>(high >> 32));
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high_0 = __umulhi(0xd2511f53u, c.x), low_0 = 0xd2511f53u * c.x;
    const uint32_t high_1 = __umulhi(0xcd9e8d57u, c.z), low_1 = 0xcd9e8d57u * c.z;
    c = make_uint4(high_1 ^ c.y ^ k0, low_1, high_0 ^ c.w ^ k1, low_0);
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return c;
}

}  // namespace levin::kernels::detail
