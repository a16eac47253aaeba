#include "levin/kernels/attention/packed_attention.h"

#include <ATen/ops/empty.h>

namespace levin::kernels::detail {

std::tuple<Tensor, Tensor> packed_attention_meta(const Tensor& qkv) {
  const auto b = qkv.size(0), t = qkv.size(1), h = qkv.size(3);
  return {at::empty({b, t, h, qkv.size(4)}, qkv.options()), at::empty({b, h, t}, qkv.options().dtype(at::kFloat))};
}

std::tuple<Tensor, Tensor> packed_attention_backward_meta(const Tensor& qkv, std::optional<at::ScalarType> columns,
                                                          const PackedAttentionNeeds& needs) {
  auto grad = at::empty(qkv.sizes(), qkv.options());
  const auto size = 3 * qkv.size(3) * qkv.size(4);
  Tensor sums;
  if (columns) sums = at::empty({size}, qkv.options().dtype(*columns));
  // Gone when the gradient is there.
  const auto wide = qkv.options().dtype(at::kFloat);
  const auto scratch = at::empty({needs.scratch}, wide);
  if (columns) (void)at::empty({needs.parts_of_columns * qkv.size(0), size}, wide);
  return {grad, sums};
}

}  // namespace levin::kernels::detail
