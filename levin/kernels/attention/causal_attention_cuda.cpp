#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/attention/causal_attention_detail.h"
#include "levin/kernels/attention/causal_attention_launch.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/number_type.h"

namespace levin::kernels::detail {
namespace {

/// As copies of the device want it: without gaps, at a multiple of 16 bytes.
Tensor aligned(const Tensor& x) {
  const auto dense = x.contiguous();
  return is_pack_aligned(dense.const_data_ptr()) ? dense : dense.clone();
}

std::tuple<Tensor, Tensor> causal_attention_backward_cuda(const Tensor& given_grad, const Tensor& given,
                                                          const Tensor& given_out, const Tensor& given_sums,
                                                          std::optional<at::ScalarType> columns) {
  const auto grad = aligned(given_grad), qkv = aligned(given), out = aligned(given_out), sums = aligned(given_sums);
  const c10::cuda::CUDAGuard guard(qkv.device());
  const auto wide = qkv.options().dtype(at::kFloat);
  const auto size = 3 * qkv.size(3) * qkv.size(4);
  auto qkv_grad = at::empty(qkv.sizes(), qkv.options());
  CausalAttentionLaunch launch{.qkv = qkv.const_data_ptr(),
                               .out = out.const_data_ptr(),
                               .sums = sums.const_data_ptr<float>(),
                               .grad = grad.const_data_ptr(),
                               .qkv_grad = qkv_grad.mutable_data_ptr(),
                               .half = qkv.scalar_type() == at::kHalf,
                               .batch = static_cast<int32_t>(qkv.size(0)),
                               .tokens = static_cast<int32_t>(qkv.size(1)),
                               .heads = static_cast<int32_t>(qkv.size(3)),
                               .processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount};
  Tensor column_sums, partials;
  if (columns) {
    column_sums = at::empty({size}, qkv.options().dtype(*columns));
    launch.column_sums = column_sums.mutable_data_ptr();
    launch.column_sums_type = number_type("attention", *columns);
  }
  const auto scratch = at::empty({causal_attention_scratch(launch.processors, launch.tokens)}, wide);
  launch.scratch = scratch.mutable_data_ptr<float>();
  if (columns) {
    partials = at::empty({kCausalAttentionParts * qkv.size(0), size}, wide);
    launch.column_partials = partials.mutable_data_ptr<float>();
  }
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      launch_causal_attention_backward(launch, c10::cuda::getCurrentCUDAStream(qkv.device().index()).stream())));
  return {qkv_grad, column_sums};
}

}  // namespace

bool causal_attention_runs_on(const Tensor& qkv) {
  const auto* device = at::cuda::getDeviceProperties(qkv.device().index());
  return device->major == 9 && device->minor == 0;
}

void register_causal_attention_cuda(torch::Library& library) {
  library.impl("causal_attention_backward", causal_attention_backward_cuda);
}

}  // namespace levin::kernels::detail
