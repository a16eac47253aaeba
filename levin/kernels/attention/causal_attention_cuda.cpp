#include <ATen/cuda/CUDAContext.h>
#include <torch/library.h>

#include "levin/kernels/attention/causal_attention_detail.h"
#include "levin/kernels/attention/causal_attention_launch.h"
#include "levin/kernels/attention/packed_attention.h"

namespace levin::kernels::detail {
namespace {

std::tuple<Tensor, Tensor> causal_attention_cuda(const Tensor& qkv) {
  return packed_attention_cuda(qkv, launch_causal_attention);
}

std::tuple<Tensor, Tensor> causal_attention_backward_cuda(const Tensor& grad, const Tensor& qkv, const Tensor& out,
                                                          const Tensor& sums, std::optional<at::ScalarType> columns) {
  const auto processors = at::cuda::getDeviceProperties(qkv.device().index())->multiProcessorCount;
  return packed_attention_backward_cuda(
      {grad, qkv, out, sums, columns},
      {.scratch = causal_attention_scratch(processors, qkv.size(1)), .parts_of_columns = kCausalAttentionParts},
      launch_causal_attention_backward);
}

}  // namespace

void register_causal_attention_cuda(torch::Library& library) {
  library.impl("causal_attention", causal_attention_cuda);
  library.impl("causal_attention_backward", causal_attention_backward_cuda);
}

}  // namespace levin::kernels::detail
