#include "levin/kernels/attention/rotary.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/kernels/attention/rotary_detail.h"
#include "levin/kernels/operators.h"

namespace levin::kernels {
namespace {

Tensor rotary_meta(const Tensor& qkv, const Tensor&, bool) {
  return at::empty(qkv.sizes(), qkv.options());
}
Tensor pack_qkv_meta(const Tensor& q, const Tensor&, const Tensor&) {
  return at::empty({q.size(0), q.size(1), 3, q.size(2), q.size(3)}, q.options());
}

struct RotaryOps : detail::Operators {
  detail::Operator<decltype(rotary_meta)> rotary =
      add("rotary_qk(Tensor qkv, Tensor angles, bool inverse) -> Tensor", rotary_meta, detail::rotary_by_aten);
  detail::Operator<decltype(pack_qkv_meta)> pack =
      add("pack_qkv(Tensor q, Tensor k, Tensor v) -> Tensor", pack_qkv_meta, detail::pack_qkv_by_aten);

  RotaryOps() { detail::register_rotary_cuda(cuda); }
};

/// Linear in qkv: its gradient turns back, and the gradient of that turns again.
struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& qkv, const Tensor& angles,
                        bool inverse) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({angles});
    context->saved_data["inverse"] = inverse;
    return detail::operators<RotaryOps>().rotary.call(qkv, angles, inverse);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto angles = context->get_saved_variables()[0];
    return {apply(grads[0], angles, !context->saved_data["inverse"].toBool()), {}, {}};
  }
};

}  // namespace

namespace detail {

Tensor rotary_by_aten(const Tensor& qkv, const Tensor& angles, bool inverse) {
  const auto turns = inverse ? at::stack({angles[0], -angles[1]}) : angles;
  const auto parts = qkv.unbind(2);
  return at::stack({rotate(parts[0], turns), rotate(parts[1], turns), parts[2]}, 2);
}

Tensor pack_qkv_by_aten(const Tensor& q, const Tensor& k, const Tensor& v) {
  return at::stack({q, k, v}, 2);
}

Tensor pack_qkv(const Tensor& q, const Tensor& k, const Tensor& v) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return detail::operators<RotaryOps>().pack.call(q, k, v);
}

}  // namespace detail

Tensor rotate(const Tensor& x, const Tensor& rotary) {
  const auto angles = rotary.to(x.scalar_type()).unsqueeze(2);  // [2, T, 1, D / 2]
  const auto cosine = angles[0], sine = angles[1];
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1);
}

Tensor rotary_qk(const Tensor& qkv, const Tensor& angles) {
  LEVIN_CHECK(qkv.dim() == 5 && qkv.size(2) == 3 && qkv.size(4) % 2 == 0 && angles.dim() == 3 && angles.size(0) == 2 &&
                  angles.size(1) == qkv.size(1) && angles.size(2) == qkv.size(4) / 2,
              "[rotary_qk] needs qkv [B, T, 3, H, D] with an even D and angles [2, T, D / 2], got ", qkv.sizes(),
              " and ", angles.sizes());
  return RotaryFunction::apply(qkv, angles.detach(), false);
}

}  // namespace levin::kernels
