#include <limits>

#include <ATen/core/LegacyTypeDispatch.h>

#include "levin/kernels/attention/packed_attention.h"
#include "levin/kernels/attention/short_attention_detail.h"
#include "levin/kernels/attention/short_attention_launch.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels::detail {
namespace {

std::tuple<Tensor, Tensor> short_attention_backward_meta(const Tensor&, const Tensor& qkv, const Tensor&, const Tensor&,
                                                         std::optional<at::ScalarType> columns) {
  return packed_attention_backward_meta(qkv, columns, {});
}

struct ShortAttentionOps : Operators {
  Operator<decltype(packed_attention_meta)> forward =
      add("short_attention(Tensor qkv) -> (Tensor, Tensor)", packed_attention_meta);
  Operator<decltype(short_attention_backward_meta)> backward =
      add("short_attention_backward(Tensor grad, Tensor qkv, Tensor out, Tensor sums, ScalarType? columns) -> (Tensor, "
          "Tensor)",
          short_attention_backward_meta);

  ShortAttentionOps() { register_short_attention_cuda(cuda); }
};

}  // namespace

bool short_attention_fits(const Tensor& qkv, bool causal, double dropout) {
  return !causal && dropout == 0 && at::isReducedFloatingType(qkv.scalar_type()) &&
         qkv.size(4) == kShortAttentionSize && qkv.size(1) >= kShortAttentionMinTokens &&
         qkv.size(1) <= kShortAttentionMaxTokens &&
         qkv.size(0) * qkv.size(3) * qkv.size(3) <= std::numeric_limits<int32_t>::max() && qkv.numel() > 0 &&
         runs_hopper_kernels(qkv);
}

std::tuple<Tensor, Tensor> short_attention(const Tensor& qkv) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return operators<ShortAttentionOps>().forward.call(qkv);
}

std::string short_attention_operator() {
  return operators<ShortAttentionOps>().forward.operator_name().name;
}

std::tuple<Tensor, Tensor> short_attention_backward(const Tensor& grad, const Tensor& qkv, const Tensor& out,
                                                    const Tensor& sums, std::optional<at::ScalarType> columns) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return operators<ShortAttentionOps>().backward.call(grad, qkv, out, sums, columns);
}

}  // namespace levin::kernels::detail
