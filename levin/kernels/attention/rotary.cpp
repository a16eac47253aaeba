#include "levin/kernels/attention/rotary.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/kernels/attention/rotary_detail.h"
#include "levin/kernels/attention/rotary_launch.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels {
namespace {

Tensor rotary_meta(const Tensor& qkv, const Tensor&, bool) {
  return at::empty(qkv.sizes(), qkv.options());
}
Tensor pack_qkv_meta(const Tensor& q, const Tensor&, const Tensor&) {
  return at::empty({q.size(0), q.size(1), 3, q.size(2), q.size(3)}, q.options());
}

using Two = std::tuple<Tensor, Tensor>;

Two pack_and_sums_by_aten(const Tensor& q, const Tensor& k, const Tensor& v, at::ScalarType dtype) {
  auto packed = detail::pack_qkv_by_aten(q, k, v);
  auto sums = packed.flatten(0, 1).flatten(1).sum(0).to(dtype);
  return {std::move(packed), std::move(sums)};
}
Two pack_and_sums_meta(const Tensor& q, const Tensor& k, const Tensor& v, at::ScalarType dtype) {
  auto packed = pack_qkv_meta(q, k, v);
  const auto rows = q.size(0) * q.size(1), size = q.size(2) * q.size(3);
  auto sums = at::empty({3 * size}, q.options().dtype(dtype));
  if (q.numel() == 0) return {std::move(packed), std::move(sums)};
  const auto type = detail::number_type("pack_qkv", q.scalar_type());
  const auto slices = detail::pack_sums_slices(rows, size, type, detail::kPlayedProcessors);
  (void)at::empty({slices, 3 * size}, q.options().dtype(at::kFloat));  // gone when the sums are there
  return {std::move(packed), std::move(sums)};
}

struct RotaryOps : detail::Operators {
  detail::Operator<decltype(rotary_meta)> rotary =
      add("rotary_qk(Tensor qkv, Tensor angles, bool inverse) -> Tensor", rotary_meta, detail::rotary_by_aten);
  detail::Operator<decltype(pack_qkv_meta)> pack =
      add("pack_qkv(Tensor q, Tensor k, Tensor v) -> Tensor", pack_qkv_meta, detail::pack_qkv_by_aten);
  detail::Operator<decltype(pack_and_sums_meta)> pack_and_sums =
      add("pack_qkv_and_sums(Tensor q, Tensor k, Tensor v, ScalarType dtype) -> (Tensor, Tensor)", pack_and_sums_meta,
          pack_and_sums_by_aten);

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

std::tuple<Tensor, Tensor> pack_qkv_and_sums(const Tensor& q, const Tensor& k, const Tensor& v, at::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return detail::operators<RotaryOps>().pack_and_sums.call(q, k, v, dtype);
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
