#include "levin/kernels/linear/weight_casts_launch.h"
#include "levin/kernels/packs.cuh"
#include "levin/kernels/tensor_table.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kThreads = 256, kPacks = 4, kPack = 8;  // 128 bytes of a thread are on their way together
static_assert(kCastElements == kThreads * kPacks * kPack);

template <class T>
__device__ __forceinline__ void cast_pack(const CastEntry& entry, int64_t at, const Pack<float, kPack>& pack) {
  store_packed<T, kPack>(entry.to, at, pack.values);
}

template <class T>
__global__ void __launch_bounds__(kThreads) weights_cast_kernel(const CastTable table) {
  const int index = entry_of_block(table), t = static_cast<int>(threadIdx.x);
  const CastEntry entry = table.entries[index];
  const int64_t begin = static_cast<int64_t>(blockIdx.x - table.first_block[index]) * kCastElements;
  const bool aligned = (reinterpret_cast<uintptr_t>(entry.from) | reinterpret_cast<uintptr_t>(entry.to)) % 16 == 0;
  if (aligned && begin + kCastElements <= entry.numel) {
    Pack<float, kPack> packs[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) packs[i] = load<float, kPack>(entry.from, begin + (i * kThreads + t) * kPack);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) cast_pack<T>(entry, begin + (i * kThreads + t) * kPack, packs[i]);
    return;
  }
  const int64_t end = begin + kCastElements < entry.numel ? begin + kCastElements : entry.numel;
  const int64_t packed_end = aligned ? end - end % kPack : begin;
  for (int64_t at = begin + t * kPack; at < packed_end; at += kThreads * kPack)
    cast_pack<T>(entry, at, load<float, kPack>(entry.from, at));
  for (int64_t at = packed_end + t; at < end; at += kThreads)
    static_cast<T*>(entry.to)[at] = narrowed<T>(entry.from[at]);
}

template <class T>
void launch_cast(const CastTable& table, cudaStream_t stream) {
  weights_cast_kernel<T><<<static_cast<unsigned>(table.first_block[table.count]), kThreads, 0, stream>>>(table);
}

}  // namespace

int launch_weight_casts(const CastTable& table, NumberType type, CUstream_st* stream) {
  if (type == NumberType::kHalf)
    launch_cast<__half>(table, stream);
  else if (type == NumberType::kBFloat16)
    launch_cast<__nv_bfloat16>(table, stream);
  else
    return static_cast<int>(cudaErrorInvalidValue);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
