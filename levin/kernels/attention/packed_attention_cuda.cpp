#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "levin/kernels/aligned.h"
#include "levin/kernels/attention/packed_attention.h"
#include "levin/kernels/fused_step/adam_detail.h"

namespace levin::kernels::detail {
namespace {

/// qkv is aligned, and outlives the launch.
PackedAttentionLaunch launch_of(const Tensor& qkv) {
  return {.qkv = qkv.const_data_ptr(),
          .half = qkv.scalar_type() == at::kHalf,
          .batch = static_cast<int32_t>(qkv.size(0)),
          .tokens = static_cast<int32_t>(qkv.size(1)),
          .heads = static_cast<int32_t>(qkv.size(3)),
          .processors = at::cuda::getDeviceProperties(qkv.device().index())->multiProcessorCount};
}

void run(PackedAttentionKernel kernel, const PackedAttentionLaunch& launch, const Tensor& qkv) {
  C10_CUDA_CHECK(
      static_cast<cudaError_t>(kernel(launch, c10::cuda::getCurrentCUDAStream(qkv.device().index()).stream())));
}

}  // namespace

std::tuple<Tensor, Tensor> packed_attention_cuda(const Tensor& given, PackedAttentionKernel kernel) {
  const auto qkv = aligned(given);
  const c10::cuda::CUDAGuard guard(qkv.device());
  auto launch = launch_of(qkv);
  auto out = at::empty({qkv.size(0), qkv.size(1), qkv.size(3), qkv.size(4)}, qkv.options());
  auto sums = at::empty({qkv.size(0), qkv.size(3), qkv.size(1)}, qkv.options().dtype(at::kFloat));
  launch.out = out.mutable_data_ptr();
  launch.sums = sums.mutable_data_ptr<float>();
  run(kernel, launch, qkv);
  return {out, sums};
}

std::tuple<Tensor, Tensor> packed_attention_backward_cuda(const PackedAttentionGradient& of,
                                                          const PackedAttentionNeeds& needs,
                                                          PackedAttentionKernel kernel) {
  const auto grad = aligned(of.grad), qkv = aligned(of.qkv), out = aligned(of.out), sums = aligned(of.sums);
  const c10::cuda::CUDAGuard guard(qkv.device());
  const auto wide = qkv.options().dtype(at::kFloat);
  const auto size = 3 * qkv.size(3) * qkv.size(4);
  auto qkv_grad = at::empty(qkv.sizes(), qkv.options());
  auto launch = launch_of(qkv);
  launch.out = out.data_ptr();
  launch.sums = sums.data_ptr<float>();
  launch.grad = grad.const_data_ptr();
  launch.qkv_grad = qkv_grad.mutable_data_ptr();
  Tensor column_sums, scratch, partials;
  if (of.columns) {
    column_sums = at::empty({size}, qkv.options().dtype(*of.columns));
    launch.column_sums = column_sums.mutable_data_ptr();
    launch.column_sums_type = number_type("attention", *of.columns);
  }
  if (needs.scratch > 0) {
    scratch = at::empty({needs.scratch}, wide);
    launch.scratch = scratch.mutable_data_ptr<float>();
  }
  if (of.columns) {
    partials = at::empty({needs.parts_of_columns * qkv.size(0), size}, wide);
    launch.column_partials = partials.mutable_data_ptr<float>();
  }
  run(kernel, launch, qkv);
  return {qkv_grad, column_sums};
}

}  // namespace levin::kernels::detail
