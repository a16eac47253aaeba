#include "levin/testing/gradients.h"

#include <algorithm>
#include <cmath>

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include "levin/core/error.h"

namespace levin::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Numbered = std::function<Tensor(const Tensors&)>;

Tensors leaves(const Tensors& inputs) {
  Tensors result;
  for (const auto& input : inputs) {
    LEVIN_CHECK(input.scalar_type() == at::kDouble, "[testing] gradients are checked in double, not ",
                input.scalar_type());
    result.push_back(input.detach().clone().set_requires_grad(true));
  }
  return result;
}

}  // namespace

double gradient_error(const Numbered& f, const Tensors& inputs, double step) {
  const auto own = leaves(inputs);
  const auto gradients = torch::autograd::grad({f(own)}, own, {}, /*retain_graph=*/false, /*create_graph=*/false,
                                               /*allow_unused=*/true);
  double largest = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    auto numbers = own[i].detach().view({-1});
    const auto gradient = gradients[i].defined() ? gradients[i].reshape({-1}) : at::zeros_like(numbers);
    for (int64_t k = 0; k < numbers.numel(); ++k) {
      const auto number = numbers[k];
      const auto before = number.item<double>();
      const auto at_offset = [&](double offset) {
        number.fill_(before + offset);
        return f(own).item<double>();
      };
      const auto difference = (at_offset(step) - at_offset(-step)) / (2 * step);
      number.fill_(before);
      const auto error = std::abs(difference - gradient[k].item<double>());
      if (std::isnan(error)) return error;
      largest = std::max(largest, error);
    }
  }
  return largest;
}

double second_gradient_error(const Numbered& f, const Tensors& inputs, double step) {
  const Numbered squares = [&](const Tensors& own) {
    const auto gradients = torch::autograd::grad({f(own)}, own, {}, /*retain_graph=*/true, /*create_graph=*/true);
    auto sum = at::zeros({}, at::kDouble);
    for (const auto& gradient : gradients) sum = sum + gradient.square().sum();
    return sum;
  };
  return gradient_error(squares, inputs, step);
}

}  // namespace levin::testing
