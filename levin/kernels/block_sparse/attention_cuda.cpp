#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/block_sparse/attention_detail.h"
#include "levin/kernels/fused_step/adam_detail.h"

namespace levin::kernels::detail {
namespace {

using MaybeTensor = std::optional<Tensor>;

BlockSparseLaunch block_sparse_launch(const Tensor& qkv, const MaybeTensor& mask, const Tensor& seen,
                                      const Tensor& seen_by, const Tensor& out, const Tensor& sums) {
  return {.qkv = qkv.const_data_ptr(),
          .mask = mask ? mask->const_data_ptr<bool>() : nullptr,
          .seen = seen.const_data_ptr<int32_t>(),
          .seen_by = seen_by.const_data_ptr<int32_t>(),
          .out = const_cast<void*>(out.const_data_ptr()),
          .sums = const_cast<float*>(sums.const_data_ptr<float>()),
          .type = number_type("block_sparse_attention", qkv.scalar_type()),
          .batch = static_cast<int32_t>(qkv.size(0)),
          .heads = static_cast<int32_t>(qkv.size(3)),
          .blocks = static_cast<int32_t>(seen.size(1) + 2),
          .width = static_cast<int32_t>(seen.size(2)),
          .scale = 1 / std::sqrt(static_cast<float>(qkv.size(4)))};
}

BlockSparseResult block_sparse_cuda(const Tensor& qkv, const MaybeTensor& given_mask, const Tensor& seen,
                                    const Tensor& seen_by) {
  // The kernel loads 16 bytes at once; a view of torch's memory may not be where that is possible.
  if (!runs_block_sparse_kernel(qkv, seen) || !is_pack_aligned(qkv.const_data_ptr()))
    return {block_sparse_by_aten(qkv, given_mask, seen), at::empty({0}, qkv.options())};
  const auto mask = given_mask ? MaybeTensor(given_mask->contiguous()) : std::nullopt;
  auto out = at::empty({qkv.size(0), qkv.size(1), qkv.size(3) * qkv.size(4)}, qkv.options());
  auto sums = at::empty({qkv.size(0), qkv.size(3), qkv.size(1)}, qkv.options().dtype(at::kFloat));
  const c10::cuda::CUDAGuard guard(qkv.device());
  C10_CUDA_CHECK(
      static_cast<cudaError_t>(launch_block_sparse(block_sparse_launch(qkv, mask, seen, seen_by, out, sums),
                                                   c10::cuda::getCurrentCUDAStream(qkv.device().index()).stream())));
  return {out, sums};
}

Tensor block_sparse_backward_cuda(const Tensor& grad, const Tensor& qkv, const MaybeTensor& given_mask,
                                  const Tensor& seen, const Tensor& seen_by, const Tensor& out, const Tensor& sums) {
  if (sums.numel() == 0 || !is_pack_aligned(grad.const_data_ptr()))
    return block_sparse_backward_by_aten(grad, qkv, given_mask, seen);
  const auto mask = given_mask ? MaybeTensor(given_mask->contiguous()) : std::nullopt;
  const auto products = at::empty_like(sums);
  auto result = at::empty(qkv.sizes(), qkv.options());
  const c10::cuda::CUDAGuard guard(qkv.device());
  const BlockSparseBackwardLaunch launch{.forward = block_sparse_launch(qkv, mask, seen, seen_by, out, sums),
                                         .grad = grad.const_data_ptr(),
                                         .products = products.mutable_data_ptr<float>(),
                                         .grad_qkv = result.mutable_data_ptr()};
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      launch_block_sparse_backward(launch, c10::cuda::getCurrentCUDAStream(qkv.device().index()).stream())));
  return result;
}

}  // namespace

void register_block_sparse_cuda(torch::Library& library) {
  library.impl("block_sparse_attention", block_sparse_cuda);
  library.impl("block_sparse_attention_backward", block_sparse_backward_cuda);
}

}  // namespace levin::kernels::detail
