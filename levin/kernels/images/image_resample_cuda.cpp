#include <cstring>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "levin/kernels/images/image_resample_detail.h"

namespace levin::kernels::detail {

static_assert(sizeof(ResampleEntry) % 8 == 0);

void resample_images_cuda(std::span<const ResampleEntry> entries, ResampleLaunch launch, Tensor& out) {
  const c10::cuda::CUDAGuard guard(out.device());
  // One copy from pinned memory, whose allocator holds it until the stream has passed it: nobody waits.
  const Tensor host =
      at::empty({static_cast<int64_t>(entries.size_bytes())}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  std::memcpy(host.mutable_data_ptr(), entries.data(), entries.size_bytes());
  const Tensor table = host.to(out.device(), /*non_blocking=*/true);
  launch.entries = static_cast<const ResampleEntry*>(table.const_data_ptr());
  launch.out = out.mutable_data_ptr();
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      launch_resample_images(launch, c10::cuda::getCurrentCUDAStream(out.device().index()).stream())));
}

}  // namespace levin::kernels::detail
