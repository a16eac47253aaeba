#pragma once

#include "levin/kernels/images/image_batch.h"
#include "levin/kernels/images/image_batch_launch.h"

namespace levin::kernels::detail {

/// In image_batch_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void normalize_images_cuda(const Tensor& images, NormalizeLaunch launch, std::span<const ImagePlacement> placements,
                           Tensor& out);
void erase_images_cuda(Tensor& images, EraseLaunch launch, std::span<const EraseBox> boxes);

}  // namespace levin::kernels::detail
