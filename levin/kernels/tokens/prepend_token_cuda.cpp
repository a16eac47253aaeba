#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/tokens/prepend_token_detail.h"
#include "levin/kernels/tokens/prepend_token_launch.h"

namespace levin::kernels::detail {
namespace {

constexpr const char* kPrependToken = "prepend_token";

NumberType token_type_of(const Tensor& tensor) {
  return tensor.defined() ? number_type(kPrependToken, tensor.scalar_type()) : NumberType::kNone;
}
void* token_target(const Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}

Tensor prepend_token_cuda(const Tensor& given_patches, const Tensor& given_token, const Tensor& given_positions) {
  const c10::cuda::CUDAGuard guard(given_patches.device());
  const auto patches = given_patches.contiguous(), token = given_token.contiguous(),
             positions = given_positions.contiguous();
  auto out = at::empty({patches.size(0), patches.size(1) + 1, patches.size(2)},
                       patches.options().dtype(token_dtype(patches, token, positions)));
  if (out.numel() == 0) return out;
  TokenForward launch;
  launch.patches = patches.const_data_ptr(), launch.token = token.const_data_ptr();
  launch.positions = positions.const_data_ptr(), launch.out = out.mutable_data_ptr();
  launch.sizes = {out.size(0), out.size(1), out.size(2)};
  launch.patches_type = token_type_of(patches), launch.token_type = token_type_of(token);
  launch.positions_type = token_type_of(positions), launch.out_type = token_type_of(out);
  launch.aligned = is_pack_aligned(launch.patches) && is_pack_aligned(launch.out);
  launch.parameters_aligned = is_pack_aligned(launch.token) && is_pack_aligned(launch.positions);
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch_token_forward(launch, c10::cuda::getCurrentCUDAStream().stream())));
  return out;
}

TokenGradients prepend_token_backward_cuda(const Tensor& given, MaybeDtype patches_dtype, MaybeDtype token_dtype,
                                           MaybeDtype positions_dtype, MaybeDtype sums_dtype) {
  const c10::cuda::CUDAGuard guard(given.device());
  const auto grad = given.contiguous();
  auto made = allocate_token_backward(grad, patches_dtype, token_dtype, positions_dtype, sums_dtype,
                                      at::cuda::getCurrentDeviceProperties()->multiProcessorCount);
  const auto& [patches, token, positions, sums] = made.gradients;
  if (grad.numel() == 0) {
    for (const auto* each : {&token, &positions, &sums})
      if (each->defined()) each->zero_();
    return made.gradients;
  }
  TokenBackward launch;
  launch.grad = grad.const_data_ptr(), launch.partials = token_target(made.partials);
  launch.patches = token_target(patches), launch.token = token_target(token);
  launch.positions = token_target(positions), launch.sums = token_target(sums);
  launch.parts = made.partials.defined() ? made.partials.size(0) : 1;
  launch.sizes = {grad.size(0), grad.size(1), grad.size(2)};
  launch.grad_type = token_type_of(grad);
  launch.patches_type = patches.defined() ? token_type_of(patches) : launch.grad_type;
  launch.token_type = token_type_of(token), launch.positions_type = token_type_of(positions);
  launch.sums_type = token_type_of(sums);
  launch.aligned = is_pack_aligned(launch.grad) && is_pack_aligned(launch.patches);
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch_token_backward(launch, c10::cuda::getCurrentCUDAStream().stream())));
  return made.gradients;
}

}  // namespace

void register_prepend_token_cuda(torch::Library& library) {
  library.impl("prepend_token", prepend_token_cuda);
  library.impl("prepend_token_backward", prepend_token_backward_cuda);
}

}  // namespace levin::kernels::detail
