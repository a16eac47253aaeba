#pragma once

#include <cstdint>

#include <cuda_runtime.h>

/// Blocks of a cluster and each other's shared memory, from compute capability 9.0 on. LaunchShape of early_start.cuh
/// says how many blocks a cluster has.
namespace levin::kernels::detail {

__device__ __forceinline__ int block_of_cluster() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// The place of another block that `local` is here.
__device__ __forceinline__ uint32_t place_in_block(const void* local, int block) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(there)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(local))), "r"(block));
  return there;
}
__device__ __forceinline__ void store_in_block(uint32_t place, float a) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(place), "f"(a) : "memory");
}
__device__ __forceinline__ void store_in_block(uint32_t place, float a, float b) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(place), "f"(a), "f"(b) : "memory");
}
__device__ __forceinline__ void store_in_block(uint32_t place, float a, float b, float c, float d) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(place), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

/// All threads of a cluster arrive, then wait for each other.
__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void sync_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}

}  // namespace levin::kernels::detail
