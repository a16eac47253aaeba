#pragma once

#include <cstdint>

/// Copies from global to shared memory that a thread does not wait for.
namespace levin::kernels::detail {

/// 16 bytes; both pointers are multiples of 16.
__device__ __forceinline__ void begin_copy(void* to, const void* from) {
  const auto place = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
}

/// Ends a set of copies; it may be empty.
__device__ __forceinline__ void end_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits for all sets of this thread but the last `kLater`.
template <int kLater>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

/// The same for 0, 1 or 2 sets.
__device__ __forceinline__ void await_copies(int later) {
  if (later == 0) return await_copies<0>();
  if (later == 1) return await_copies<1>();
  await_copies<2>();
}

}  // namespace levin::kernels::detail
