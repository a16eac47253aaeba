#pragma once

#include <cstdint>
#include <utility>

#include <cuda_runtime.h>

/// Kernels of a few microseconds one after the other (programmatic dependent launch): the next one is on the device,
/// and reads what does not depend on this one, before this one has ended. A kernel that is launched so calls
/// wait_for_previous in every thread, before it reads or writes anything that another kernel writes or reads. Devices
/// before compute capability 9.0 run one after the other, as ever.
namespace levin::kernels::detail {

/// From here on the next kernel may start, if it is launched early.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Until all kernels before this one have ended, and their results can be seen.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

inline bool can_start_early() {
  static const bool can = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
  }();
  return can;
}

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;
  /// Large ones gain nothing.
  bool early = true;
  /// Blocks of a row of the grid that run together, and see each other's shared memory; from compute capability 9.0 on.
  unsigned cluster = 1;
};

/// kernel<<<grid, block, shared_bytes, stream>>>(arguments...), early where the device can.
template <class... Parameters, class... Arguments>
cudaError_t launch_early(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                         Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (shape.early && can_start_early()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {shape.cluster, 1, 1};
  }
  cudaLaunchConfig_t launch{};
  launch.gridDim = shape.grid;
  launch.blockDim = shape.block;
  launch.dynamicSmemBytes = shape.shared_bytes;
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = count;
  return cudaLaunchKernelEx(&launch, kernel, Parameters(std::forward<Arguments>(arguments))...);
}

}  // namespace levin::kernels::detail
