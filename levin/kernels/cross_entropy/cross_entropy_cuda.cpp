#include <limits>

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/core/error.h"
#include "levin/kernels/cross_entropy/cross_entropy_detail.h"
#include "levin/kernels/cross_entropy/cross_entropy_launch.h"
#include "levin/kernels/fused_step/adam_detail.h"

namespace levin::kernels::detail {
namespace {

void cross_entropy_cuda(const Tensor& logits, const Tensor& targets, const Tensor& losses, int64_t classes,
                        int64_t ignore_index, bool gradient, const std::optional<Tensor>& scale) {
  const auto dtype = logits.scalar_type();
  const bool has_kernel = dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
  // Sums of threads and strides fit into 32 bits.
  if (!has_kernel || logits.stride(1) != 1 || logits.size(1) > (int64_t{1} << 30) || !losses.is_contiguous() ||
      logits.size(0) > std::numeric_limits<int32_t>::max())
    return cross_entropy_by_aten(logits, targets, losses, classes, ignore_index, gradient, scale);
  LEVIN_CHECK(!scale || (scale->is_cuda() && scale->scalar_type() == at::kFloat && scale->numel() == 1),
              "[cross_entropy_step] the scale must be one float32 on the device of the logits");
  const c10::cuda::CUDAGuard guard(logits.device());
  const auto classes_of_rows = targets.contiguous();
  const CrossEntropyLaunch launch{.logits = logits.mutable_data_ptr(),
                                  .type = number_type("cross_entropy_step", dtype),
                                  .stride = logits.stride(0),
                                  .targets = classes_of_rows.const_data_ptr<int64_t>(),
                                  .losses = losses.mutable_data_ptr<float>(),
                                  .scale = scale ? scale->const_data_ptr<float>() : nullptr,
                                  .rows = logits.size(0),
                                  .columns = static_cast<int32_t>(logits.size(1)),
                                  .classes = static_cast<int32_t>(classes),
                                  .ignore_index = ignore_index,
                                  .gradient = gradient};
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      launch_cross_entropy(launch, c10::cuda::getCurrentCUDAStream(logits.device().index()).stream())));
}

void scale_cuda(const Tensor& x, const Tensor& factor) {
  if (x.scalar_type() == at::kDouble || !x.is_contiguous() || !factor.is_cuda()) return scale_by_aten(x, factor);
  const c10::cuda::CUDAGuard guard(x.device());
  const ScaleLaunch launch{.x = x.mutable_data_ptr(),
                           .factor = factor.const_data_ptr(),
                           .type = number_type("scale_in_place", x.scalar_type()),
                           .count = x.numel(),
                           .processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount};
  C10_CUDA_CHECK(
      static_cast<cudaError_t>(launch_scale(launch, c10::cuda::getCurrentCUDAStream(x.device().index()).stream())));
}

void scale_rows_cuda(const Tensor& out, const Tensor& x, const Tensor& factors) {
  constexpr int64_t kWidth = 4;
  const bool packs = x.size(1) % kWidth == 0 && x.size(1) <= std::numeric_limits<int32_t>::max() &&
                     x.size(0) <= std::numeric_limits<int32_t>::max() && is_pack_aligned(x.const_data_ptr()) &&
                     is_pack_aligned(out.const_data_ptr());
  if (out.scalar_type() == at::kDouble || !packs || !x.is_contiguous() || !out.is_contiguous() ||
      !factors.is_contiguous())
    return scale_rows_by_aten(out, x, factors);
  const c10::cuda::CUDAGuard guard(x.device());
  const ScaleRowsLaunch launch{.out = out.mutable_data_ptr(),
                               .type = number_type("scale_rows", out.scalar_type()),
                               .x = x.const_data_ptr<float>(),
                               .factors = factors.const_data_ptr<float>(),
                               .rows = x.size(0),
                               .packs = static_cast<int32_t>(x.size(1) / kWidth)};
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      launch_scale_rows(launch, c10::cuda::getCurrentCUDAStream(x.device().index()).stream())));
}

}  // namespace

void register_cross_entropy_cuda(torch::Library& library) {
  library.impl("cross_entropy_step", cross_entropy_cuda);
  library.impl("scale_", scale_cuda);
  library.impl("scale_rows", scale_rows_cuda);
}

}  // namespace levin::kernels::detail
