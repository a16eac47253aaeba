// The null twin of this folder's *_cuda.cpp, for builds without CUDA.
#include "levin/core/error.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/image_batch_detail.h"
#include "levin/kernels/image_resample_detail.h"
#include "levin/kernels/jpeg_colors.h"

namespace levin::kernels::detail {

void normalize_images_cuda(const Tensor&, NormalizeLaunch, std::span<const ImagePlacement>, Tensor&) {
  levin::detail::fail("[normalize_images] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void erase_images_cuda(Tensor&, EraseLaunch, std::span<const EraseBox>) {
  levin::detail::fail("[erase_images] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void resample_images_cuda(std::span<const ResampleEntry>, ResampleLaunch, Tensor&) {
  levin::detail::fail("[resample_images] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void jpeg_colors_cuda(std::span<const JpegPlanesEntry>, c10::Device) {
  levin::detail::fail("[jpeg_colors] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void adam_cuda(std::span<const StepEntry>, const AdamNumbers&, const StepScale&, c10::Device) {
  levin::detail::fail("[fused_adam] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void sgd_cuda(std::span<const StepEntry>, const SgdNumbers&, const StepScale&, c10::Device) {
  levin::detail::fail("[fused_sgd] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void adam_8bit_cuda(std::span<const StepEntry>, const AdamNumbers&, const CodeBooks&, const StepScale&, c10::Device) {
  levin::detail::fail("[fused_adam_8bit] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

}  // namespace levin::kernels::detail
