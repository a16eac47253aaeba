#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/aligned.h"
#include "levin/kernels/attention/packed_attention.h"
#include "levin/kernels/attention/short_attention_detail.h"
#include "levin/kernels/attention/short_attention_launch.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/number_type.h"

namespace levin::kernels::detail {
namespace {

void run(int (*kernel)(const PackedAttentionLaunch&, CUstream_st*), const PackedAttentionLaunch& launch,
         const Tensor& qkv) {
  const c10::cuda::CUDAGuard guard(qkv.device());
  C10_CUDA_CHECK(
      static_cast<cudaError_t>(kernel(launch, c10::cuda::getCurrentCUDAStream(qkv.device().index()).stream())));
}

std::tuple<Tensor, Tensor> short_attention_cuda(const Tensor& given) {
  const auto qkv = aligned(given);
  auto launch = launch_of(qkv);
  auto out = at::empty({qkv.size(0), qkv.size(1), qkv.size(3), qkv.size(4)}, qkv.options());
  auto sums = at::empty({qkv.size(0), qkv.size(3), qkv.size(1)}, qkv.options().dtype(at::kFloat));
  launch.out = out.mutable_data_ptr();
  launch.sums = sums.mutable_data_ptr<float>();
  run(launch_short_attention, launch, qkv);
  return {out, sums};
}

std::tuple<Tensor, Tensor> short_attention_backward_cuda(const Tensor& given_grad, const Tensor& given,
                                                         const Tensor& given_out, const Tensor& given_sums,
                                                         std::optional<at::ScalarType> columns) {
  const auto grad = aligned(given_grad), qkv = aligned(given), out = aligned(given_out), sums = aligned(given_sums);
  auto launch = launch_of(qkv);
  auto qkv_grad = at::empty(qkv.sizes(), qkv.options());
  launch.out = out.data_ptr();
  launch.sums = sums.data_ptr<float>();
  launch.grad = grad.const_data_ptr();
  launch.qkv_grad = qkv_grad.mutable_data_ptr();
  Tensor column_sums, partials;
  if (columns) {
    const auto size = 3 * qkv.size(3) * qkv.size(4);
    column_sums = at::empty({size}, qkv.options().dtype(*columns));
    partials = at::empty({qkv.size(0), size}, qkv.options().dtype(at::kFloat));
    launch.column_sums = column_sums.mutable_data_ptr();
    launch.column_sums_type = number_type("attention", *columns);
    launch.column_partials = partials.mutable_data_ptr<float>();
  }
  run(launch_short_attention_backward, launch, qkv);
  return {qkv_grad, column_sums};
}

}  // namespace

void register_short_attention_cuda(torch::Library& library) {
  library.impl("short_attention", short_attention_cuda);
  library.impl("short_attention_backward", short_attention_backward_cuda);
}

}  // namespace levin::kernels::detail
