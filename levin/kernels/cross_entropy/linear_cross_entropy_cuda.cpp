#include <limits>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/core/error.h"
#include "levin/kernels/aligned.h"
#include "levin/kernels/cross_entropy/linear_cross_entropy_detail.h"
#include "levin/kernels/cross_entropy/linear_cross_entropy_launch.h"
#include "levin/kernels/number_type.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels::detail {
namespace {

using at::Tensor;

bool is_matrix(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && x.is_contiguous() && x.size(1) % 8 == 0 &&
         x.size(0) <= std::numeric_limits<int32_t>::max() && x.size(1) <= std::numeric_limits<int32_t>::max() &&
         is_pack_aligned(x.const_data_ptr());
}

std::tuple<Tensor, Tensor> step_cuda(const Tensor& given_x, const Tensor& given_weight, const Tensor& targets,
                                     const Tensor& losses, const std::optional<Tensor>& grads, int64_t classes,
                                     int64_t ignore_index, const std::optional<Tensor>& scale) {
  const auto x = aligned(given_x), weight = aligned(given_weight);
  LEVIN_CHECK(is_hopper(x.device()) && is_matrix(x) && is_matrix(weight) && (!grads || is_matrix(*grads)),
              "[linear_cross_entropy_step] needs contiguous bfloat16 matrices with rows of 16 bytes, and compute "
              "capability 9.0");
  LEVIN_CHECK(losses.scalar_type() == at::kFloat && losses.is_contiguous(),
              "[linear_cross_entropy_step] the losses must be float32 without gaps");
  LEVIN_CHECK(!scale || (scale->is_cuda() && scale->scalar_type() == at::kFloat && scale->numel() == 1),
              "[linear_cross_entropy_step] the scale must be one float32 on the device of x");
  const c10::cuda::CUDAGuard guard(x.device());
  auto factors = at::empty(losses.sizes(), losses.options());
  auto scaled = grads ? at::empty(x.sizes(), x.options()) : Tensor();
  const auto scratch = at::empty({linear_cross_entropy_scratch(x.size(0), weight.size(0))}, losses.options());
  if (x.size(0) == 0) return {factors, scaled};
  const auto classes_of_rows = targets.contiguous();
  const LinearCrossEntropyLaunch launch{
      .x = x.const_data_ptr(),
      .w = weight.const_data_ptr(),
      .targets = classes_of_rows.const_data_ptr<int64_t>(),
      .losses = losses.mutable_data_ptr<float>(),
      .scale = scale ? scale->const_data_ptr<float>() : nullptr,
      .grads = grads ? grads->mutable_data_ptr() : nullptr,
      .factors = factors.mutable_data_ptr<float>(),
      .scaled_x = grads ? scaled.mutable_data_ptr() : nullptr,
      .scratch = scratch.mutable_data_ptr<float>(),
      .rows = static_cast<int32_t>(x.size(0)),
      .columns = static_cast<int32_t>(weight.size(0)),
      .classes = static_cast<int32_t>(classes),
      .depth = static_cast<int32_t>(x.size(1)),
      .ignore_index = ignore_index,
      .processors = at::cuda::getDeviceProperties(x.device().index())->multiProcessorCount};
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      launch_linear_cross_entropy(launch, c10::cuda::getCurrentCUDAStream(x.device().index()).stream())));
  return {factors, scaled};
}

}  // namespace

void register_linear_cross_entropy_cuda(torch::Library& library) {
  library.impl("linear_cross_entropy_step", step_cuda);
}

}  // namespace levin::kernels::detail
