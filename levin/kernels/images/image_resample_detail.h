#pragma once

#include <span>

#include "levin/kernels/images/image_resample.h"
#include "levin/kernels/images/image_resample_launch.h"

namespace levin::kernels::detail {

/// In image_resample_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void resample_images_cuda(std::span<const ResampleEntry> entries, ResampleLaunch launch, Tensor& out);

}  // namespace levin::kernels::detail
