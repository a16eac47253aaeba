#pragma once

#include <span>

#include <ATen/core/Tensor.h>

namespace levin::optim {

using at::Tensor;

/// Scales the gradients of the parameters together, in place, so that their norm is at most `max_norm`, and returns the
/// norm before, torch.nn.utils.clip_grad_norm_'s numbers. `norm_type` is 2, 1, infinity or any p > 0. A parameter that
/// is listed twice counts once. The host does not wait for the device, unless `error_if_nonfinite` asks for an Error on
/// inf or nan.
Tensor clip_grad_norm(std::span<const Tensor> params, double max_norm, double norm_type = 2,
                      bool error_if_nonfinite = false);

/// Clamps every gradient element to [-clip_value, clip_value], in place.
void clip_grad_value(std::span<const Tensor> params, double clip_value);

/// The norm of all gradients together, on the device of the first; 0 when there are none.
Tensor grad_norm(std::span<const Tensor> params, double norm_type = 2);

/// The second half of clip_grad_norm, for a norm that is known already (over all ranks, for one).
void clip_grads_with_norm(std::span<const Tensor> params, double max_norm, const Tensor& total_norm);

}  // namespace levin::optim
