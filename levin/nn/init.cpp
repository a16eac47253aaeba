#include "levin/nn/init.h"

#include <cmath>

#include <c10/core/GradMode.h>

#include "levin/core/error.h"

namespace levin::nn::init {

at::Tensor trunc_normal_(at::Tensor tensor, double mean, double std, double low, double high) {
  LEVIN_CHECK(std > 0 && low < high, "[trunc_normal_] std ", std, " must be positive and [", low, ", ", high,
              "] must not be empty");
  const c10::AutoGradMode no_grad(false);
  const auto cdf = [&](double x) { return (1 + std::erf((x - mean) / std / std::sqrt(2.0))) / 2; };
  // Uniform numbers through the inverse of the distribution function.
  tensor.uniform_(2 * cdf(low) - 1, 2 * cdf(high) - 1);
  tensor.erfinv_();
  tensor.mul_(std * std::sqrt(2.0));
  tensor.add_(mean);
  return tensor.clamp_(low, high);
}

}  // namespace levin::nn::init
