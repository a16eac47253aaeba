#include "levin/optim/zero_grad.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>

#include "levin/devices/graphs.h"
#include "levin/optim/step/by_device.h"

namespace levin::optim {

void zero_grad(const std::vector<Tensor>& params, bool set_to_none) {
  // A compiled step that accumulates works on gradients at fixed addresses.
  const auto* step = levin::detail::current_step();
  if (set_to_none && !(step && step->keeps_gradients)) {
    for (const auto& param : params)
      if (param.grad().defined()) param.mutable_grad().reset();
    return;
  }
  at::NoGradGuard no_grad;
  std::vector<Tensor> dense;
  for (const auto& param : params) {
    const Tensor& grad = param.grad();
    if (!grad.defined()) continue;
    if (grad.layout() == at::kStrided)
      dense.push_back(grad);
    else
      grad.zero_();
  }
  for (auto& part : detail::by_device_and_dtype(dense)) at::_foreach_zero_(part.tensors);
}

}  // namespace levin::optim
