#include <torch/library.h>

#include "levin/kernels/attention/packed_attention.h"
#include "levin/kernels/attention/short_attention_detail.h"
#include "levin/kernels/attention/short_attention_launch.h"

namespace levin::kernels::detail {
namespace {

std::tuple<Tensor, Tensor> short_attention_cuda(const Tensor& qkv) {
  return packed_attention_cuda(qkv, launch_short_attention);
}

std::tuple<Tensor, Tensor> short_attention_backward_cuda(const Tensor& grad, const Tensor& qkv, const Tensor& out,
                                                         const Tensor& sums, std::optional<at::ScalarType> columns) {
  return packed_attention_backward_cuda({grad, qkv, out, sums, columns}, {}, launch_short_attention_backward);
}

}  // namespace

void register_short_attention_cuda(torch::Library& library) {
  library.impl("short_attention", short_attention_cuda);
  library.impl("short_attention_backward", short_attention_backward_cuda);
}

}  // namespace levin::kernels::detail
