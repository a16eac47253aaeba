#include "levin/optim/clip.h"

#include <algorithm>
#include <cmath>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "levin/core/error.h"
#include "levin/optim/in_backward.h"
#include "levin/optim/step/by_device.h"

namespace levin::optim {
namespace {

// Gradients with elements, each once: a module lists a tied parameter as often as it is registered.
std::vector<Tensor> gradients(const char* operation, std::span<const Tensor> params) {
  std::vector<const void*> addresses;
  for (const auto& param : params) addresses.push_back(param.unsafeGetTensorImpl());
  std::ranges::sort(addresses);
  const bool all_differ = std::ranges::adjacent_find(addresses) == addresses.end();

  std::vector<Tensor> grads;
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor& grad = params[i].grad();
    if (!grad.defined()) {
      const auto stepper = detail::stepped_in_backward_by(params[i]);
      LEVIN_CHECK(stepper.empty(), "[", operation, "] parameter ", i, " is stepped in backward by ", stepper,
                  ", and its gradient is gone by now; use the optimizer itself to look at all gradients before a step");
      continue;
    }
    if (grad.numel() == 0) continue;
    LEVIN_CHECK(grad.layout() == at::kStrided, "[", operation, "] the gradient of parameter ", i,
                " is sparse; only dense ones can be clipped (grad.to_dense())");
    if (!all_differ && std::ranges::any_of(params.first(i), [&](const Tensor& p) { return p.is_same(params[i]); }))
      continue;
    grads.push_back(grad);
  }
  return grads;
}

Tensor norm_of(std::span<const Tensor> grads, double norm_type) {
  LEVIN_CHECK(norm_type > 0, "[clip_grad_norm] norm_type=", norm_type, " must be > 0, or infinity");
  if (grads.empty()) return at::zeros({});
  std::vector<Tensor> norms;
  for (auto& part : detail::by_device_and_dtype(grads))
    for (auto& norm : at::_foreach_norm(part.tensors, norm_type)) norms.push_back(norm.to(grads[0].device()));
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

void scale_gradients(std::span<const Tensor> grads, double max_norm, const Tensor& total_norm) {
  const auto factor = (max_norm / (total_norm + 1e-6)).clamp_max(1.0);
  for (auto& part : detail::by_device_and_dtype(grads)) at::_foreach_mul_(part.tensors, factor.to(part.device));
}

}  // namespace

Tensor grad_norm(std::span<const Tensor> params, double norm_type) {
  at::NoGradGuard no_grad;
  return norm_of(gradients("grad_norm", params), norm_type);
}

void clip_grads_with_norm(std::span<const Tensor> params, double max_norm, const Tensor& total_norm) {
  at::NoGradGuard no_grad;
  scale_gradients(gradients("clip_grads_with_norm", params), max_norm, total_norm);
}

Tensor clip_grad_norm(std::span<const Tensor> params, double max_norm, double norm_type, bool error_if_nonfinite) {
  LEVIN_CHECK(max_norm >= 0, "[clip_grad_norm] max_norm=", max_norm, " must be >= 0");
  at::NoGradGuard no_grad;
  const auto grads = gradients("clip_grad_norm", params);
  auto total = norm_of(grads, norm_type);
  if (error_if_nonfinite)
    LEVIN_CHECK(std::isfinite(total.item<double>()), "[clip_grad_norm] the norm of the gradients is ",
                total.item<double>(), "; a gradient has inf or nan (error_if_nonfinite = false lets it pass)");
  scale_gradients(grads, max_norm, total);
  return total;
}

void clip_grad_value(std::span<const Tensor> params, double clip_value) {
  LEVIN_CHECK(clip_value >= 0, "[clip_grad_value] clip_value=", clip_value, " must be >= 0");
  at::NoGradGuard no_grad;
  for (auto& part : detail::by_device_and_dtype(gradients("clip_grad_value", params))) {
    at::_foreach_clamp_min_(part.tensors, -clip_value);
    at::_foreach_clamp_max_(part.tensors, clip_value);
  }
}

}  // namespace levin::optim
