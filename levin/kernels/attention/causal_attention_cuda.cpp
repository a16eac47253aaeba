#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/aligned.h"
#include "levin/kernels/attention/causal_attention_detail.h"
#include "levin/kernels/attention/causal_attention_launch.h"
#include "levin/kernels/attention/packed_attention.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/number_type.h"

namespace levin::kernels::detail {
namespace {

std::tuple<Tensor, Tensor> causal_attention_backward_cuda(const Tensor& given_grad, const Tensor& given,
                                                          const Tensor& given_out, const Tensor& given_sums,
                                                          std::optional<at::ScalarType> columns) {
  const auto grad = aligned(given_grad), qkv = aligned(given), out = aligned(given_out), sums = aligned(given_sums);
  const c10::cuda::CUDAGuard guard(qkv.device());
  const auto wide = qkv.options().dtype(at::kFloat);
  const auto size = 3 * qkv.size(3) * qkv.size(4);
  auto qkv_grad = at::empty(qkv.sizes(), qkv.options());
  auto launch = launch_of(qkv);
  launch.out = out.data_ptr();
  launch.sums = sums.data_ptr<float>();
  launch.grad = grad.const_data_ptr();
  launch.qkv_grad = qkv_grad.mutable_data_ptr();
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

void register_causal_attention_cuda(torch::Library& library) {
  library.impl("causal_attention_backward", causal_attention_backward_cuda);
}

}  // namespace levin::kernels::detail
