#include <limits>

#include <ATen/core/LegacyTypeDispatch.h>

#include "levin/kernels/attention/causal_attention_detail.h"
#include "levin/kernels/attention/causal_attention_launch.h"
#include "levin/kernels/attention/packed_attention.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels::detail {
namespace {

std::tuple<Tensor, Tensor> causal_attention_backward_meta(const Tensor&, const Tensor& qkv, const Tensor&,
                                                          const Tensor&, std::optional<at::ScalarType> columns) {
  return packed_attention_backward_meta(
      qkv, columns,
      {.scratch = causal_attention_scratch(kPlayedProcessors, qkv.size(1)), .parts_of_columns = kCausalAttentionParts});
}

struct CausalAttentionOps : Operators {
  Operator<decltype(packed_attention_meta)> forward =
      add("causal_attention(Tensor qkv) -> (Tensor, Tensor)", packed_attention_meta);
  Operator<decltype(causal_attention_backward_meta)> backward =
      add("causal_attention_backward(Tensor grad, Tensor qkv, Tensor out, Tensor sums, ScalarType? columns) -> "
          "(Tensor, Tensor)",
          causal_attention_backward_meta);

  CausalAttentionOps() { register_causal_attention_cuda(cuda); }
};

}  // namespace

bool causal_attention_fits(const Tensor& qkv, bool causal, double dropout) {
  return causal && dropout == 0 && at::isReducedFloatingType(qkv.scalar_type()) &&
         qkv.size(4) == kCausalAttentionSize && qkv.size(1) >= kCausalAttentionMinTokens &&
         qkv.size(1) <= kCausalAttentionMaxTokens &&
         qkv.size(0) * qkv.size(3) * qkv.size(3) <= std::numeric_limits<int32_t>::max() && qkv.numel() > 0 &&
         runs_hopper_kernels(qkv);
}

std::tuple<Tensor, Tensor> causal_attention(const Tensor& qkv) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return operators<CausalAttentionOps>().forward.call(qkv);
}

std::string causal_attention_operator() {
  return operators<CausalAttentionOps>().forward.operator_name().name;
}

std::tuple<Tensor, Tensor> causal_attention_backward(const Tensor& grad, const Tensor& qkv, const Tensor& out,
                                                     const Tensor& sums, std::optional<at::ScalarType> columns) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return operators<CausalAttentionOps>().backward.call(grad, qkv, out, sums, columns);
}

}  // namespace levin::kernels::detail
