#include "levin/optim/step/captured.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "levin/core/error.h"

namespace levin::optim::detail {

std::vector<Tensor> refreshed_scalars(c10::Device device, c10::ScalarType dtype, size_t count,
                                      std::function<void(std::span<double>)> now) {
  if (!levin::detail::is_capturing()) return {};
  LEVIN_CHECK(dtype == at::kFloat || dtype == at::kDouble, "[compile] refreshed numbers of ", dtype,
              "; Float and Double are known");
  const bool wide = dtype == at::kDouble;
  const auto fill = [wide, numbers = std::vector<double>(count), now = std::move(now)](void* host) mutable {
    now(numbers);
    if (wide)
      std::ranges::copy(numbers, static_cast<double*>(host));
    else
      std::ranges::transform(numbers, static_cast<float*>(host), [](double n) { return static_cast<float>(n); });
  };
  const void* place = levin::detail::refreshed(count * c10::elementSize(dtype), fill);
  // The graph has the memory, and lives longer than what is captured in it.
  return at::from_blob(
             const_cast<void*>(place), {static_cast<int64_t>(count)}, [](void*) {},
             at::TensorOptions(device).dtype(dtype), device)
      .unbind();
}

void load_scalar_kernels(c10::Device device) {
  if (!device.is_cuda()) return;
  const at::NoGradGuard no_grad;
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto options = at::TensorOptions(device).dtype(dtype);
    const auto number = at::ones({}, options);
    std::vector<Tensor> tensors{at::ones({5}, options)}, others{at::ones({5}, options)};
    const std::vector<Tensor> numbers{number};
    at::_foreach_mul_(tensors, number);
    at::_foreach_div_(tensors, number);
    at::_foreach_mul_(tensors, numbers);
    at::_foreach_div_(tensors, numbers);
    at::_foreach_sub_(tensors, others);
    at::_foreach_lerp_(tensors, others, numbers);
    number.clone().mul_(number);
  }
}

bool are_equal(std::span<const Tensor> steps) {
  return std::ranges::all_of(
      steps, [&](const Tensor& step) { return *step.const_data_ptr<float>() == *steps[0].const_data_ptr<float>(); });
}

}  // namespace levin::optim::detail
