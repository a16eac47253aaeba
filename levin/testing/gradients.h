#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin::testing {

/// The largest difference between the gradients that autograd gives of `f` and its central differences. The inputs are
/// double tensors on the CPU, `f` takes them (as leaves) and gives one number.
double gradient_error(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& f,
                      const std::vector<at::Tensor>& inputs, double step = 1e-6);

/// The same of the gradients themselves: of the sum of their squares.
double second_gradient_error(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& f,
                             const std::vector<at::Tensor>& inputs, double step = 1e-5);

}  // namespace levin::testing
