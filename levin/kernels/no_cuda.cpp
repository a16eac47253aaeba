// The null twin of image_batch_cuda.cpp, for builds without CUDA.
#include "levin/core/error.h"
#include "levin/kernels/image_batch_detail.h"

namespace levin::kernels::detail {

void normalize_images_cuda(const Tensor&, NormalizeLaunch, std::span<const ImagePlacement>, Tensor&) {
  levin::detail::fail("[normalize_images] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void erase_images_cuda(Tensor&, EraseLaunch, std::span<const EraseBox>) {
  levin::detail::fail("[erase_images] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

}  // namespace levin::kernels::detail
