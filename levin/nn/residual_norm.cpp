#include "levin/nn/residual_norm.h"

#include <ostream>

#include <torch/types.h>

#include "levin/core/error.h"
#include "levin/kernels/residual_norm.h"

namespace levin::nn {

ResidualNormImpl::ResidualNormImpl(const ResidualNormOptions& asked) : options(asked) {
  LEVIN_CHECK(options.size > 0, "[ResidualNorm] size ", options.size, " must be positive");
  ResidualNormImpl::reset();
}

void ResidualNormImpl::reset() {
  weight = register_parameter("weight", torch::ones({options.size}));
  if (options.bias) bias = register_parameter("bias", torch::zeros({options.size}));
}

void ResidualNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "levin::nn::ResidualNorm(" << options.size << ", eps=" << options.eps
         << ", rms=" << options.rms << ", bias=" << options.bias << ")";
}

std::tuple<Tensor, Tensor> ResidualNormImpl::forward(const Tensor& stream, const Tensor& branch, double dropout) {
  auto result =
      kernels::residual_norm(stream, branch, weight, bias, options.eps, options.rms, is_training() ? dropout : 0.0);
  return {std::move(result.output), std::move(result.stream)};
}

Tensor OpenStream::closed() const {
  return branch.defined() ? sum + branch : sum;
}

}  // namespace levin::nn
