#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/devices/graphs.h"

namespace levin::optim::detail {

using at::Tensor;

/// The numbers of a step in memory of the device, for a step that is being captured: every replay reads what `now()`
/// gives then, so that schedulers have their effect. Null outside of a capture.
template <class Numbers, class F>
const Numbers* refreshed_numbers(F now) {
  return static_cast<const Numbers*>(levin::detail::refreshed(
      sizeof(Numbers), [now = std::move(now)](void* host) { *static_cast<Numbers*>(host) = now(); }));
}

/// The same for steps that are made of aten's operators: 0-dim tensors of `dtype` on the device. `now` fills in `count`
/// numbers, and is called once before each replay. Empty outside of a capture.
std::vector<Tensor> refreshed_scalars(c10::Device device, c10::ScalarType dtype, size_t count,
                                      std::function<void(std::span<double>)> now);

/// Runs the kernels of such steps once: they cannot be loaded in a capture.
void load_scalar_kernels(c10::Device device);

/// Whether all of these counters, on the host, stand at the same number.
bool are_equal(std::span<const Tensor> steps);

}  // namespace levin::optim::detail
