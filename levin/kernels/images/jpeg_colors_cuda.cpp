#include <algorithm>
#include <cstring>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "levin/kernels/images/jpeg_colors.h"

namespace levin::kernels::detail {

void jpeg_colors_cuda(std::span<const JpegPlanesEntry> entries, c10::Device device) {
  constexpr size_t kMost = 65535;  // blocks along y
  const c10::cuda::CUDAGuard guard(device);
  for (size_t begin = 0; begin < entries.size(); begin += kMost) {
    const auto part = entries.subspan(begin, std::min(kMost, entries.size() - begin));
    int64_t most_pixels = 1;
    for (const auto& entry : part)
      most_pixels = std::max(most_pixels, static_cast<int64_t>(entry.height) * entry.width);
    const at::Tensor host =
        at::empty({static_cast<int64_t>(part.size_bytes())}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    std::memcpy(host.mutable_data_ptr(), part.data(), part.size_bytes());
    const at::Tensor table = host.to(device, /*non_blocking=*/true);
    C10_CUDA_CHECK(static_cast<cudaError_t>(launch_jpeg_colors(
        static_cast<const JpegPlanesEntry*>(table.const_data_ptr()), static_cast<int32_t>(part.size()), most_pixels,
        c10::cuda::getCurrentCUDAStream(device.index()).stream())));
  }
}

}  // namespace levin::kernels::detail
