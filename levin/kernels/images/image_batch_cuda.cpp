#include <cstring>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "levin/kernels/images/image_batch_detail.h"

namespace levin::kernels::detail {
namespace {

// The numbers of a batch in one copy from pinned memory. The allocator of that memory holds it until the stream has
// passed the copy, so nobody waits.
template <class T>
Tensor on_device(std::span<const T> values, c10::Device device) {
  const int64_t numbers = static_cast<int64_t>(values.size_bytes() / sizeof(int32_t));
  const Tensor host = at::empty({numbers}, at::TensorOptions().dtype(at::kInt).pinned_memory(true));
  std::memcpy(host.mutable_data_ptr(), values.data(), values.size_bytes());
  return host.to(device, /*non_blocking=*/true);
}

}  // namespace

static_assert(sizeof(ImagePlacement) == 3 * sizeof(int32_t) && sizeof(EraseBox) == 4 * sizeof(int32_t));

void normalize_images_cuda(const Tensor& images, NormalizeLaunch launch, std::span<const ImagePlacement> placements,
                           Tensor& out) {
  const c10::cuda::CUDAGuard guard(images.device());
  Tensor numbers;
  if (!placements.empty()) {
    numbers = on_device(placements, images.device());
    launch.placements = numbers.const_data_ptr<int32_t>();
  }
  launch.in = images.const_data_ptr<uint8_t>();
  launch.out = out.mutable_data_ptr();
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      launch_normalize_images(launch, c10::cuda::getCurrentCUDAStream(images.device().index()).stream())));
}

void erase_images_cuda(Tensor& images, EraseLaunch launch, std::span<const EraseBox> boxes) {
  const c10::cuda::CUDAGuard guard(images.device());
  const Tensor numbers = on_device(boxes, images.device());
  launch.boxes = numbers.const_data_ptr<int32_t>();
  launch.images = images.mutable_data_ptr();
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      launch_erase_images(launch, c10::cuda::getCurrentCUDAStream(images.device().index()).stream())));
}

}  // namespace levin::kernels::detail
