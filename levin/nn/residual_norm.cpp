#include "levin/nn/residual_norm.h"

#include <ostream>

#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <torch/types.h>

#include "levin/core/error.h"
#include "levin/kernels/norm/residual_norm.h"

namespace levin::nn {

ResidualNormImpl::ResidualNormImpl(const ResidualNormOptions& asked) : options(asked) {
  LEVIN_CHECK(options.size > 0, "[ResidualNorm] size ", options.size, " must be positive");
  ResidualNormImpl::reset();
}

void ResidualNormImpl::reset() {
  if (!options.affine) return;
  weight =
      register_parameter("weight", options.unit_offset ? torch::zeros({options.size}) : torch::ones({options.size}));
  if (options.bias) bias = register_parameter("bias", torch::zeros({options.size}));
}

void ResidualNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "levin::nn::ResidualNorm(" << options.size << ", eps=" << options.eps
         << ", rms=" << options.rms << ", bias=" << options.bias << ")";
}

std::tuple<Tensor, Tensor> ResidualNormImpl::forward(const Tensor& stream, const Tensor& branch, double dropout) {
  const auto p = is_training() ? dropout : 0.0;
  if (options.unit_offset) {
    const auto h = branch.defined() ? stream + (p > 0 ? at::dropout(branch, p, true) : branch) : stream;
    const auto wide = h.to(at::promote_types(h.scalar_type(), at::kFloat));
    const auto normed = wide * (wide.square().mean(-1, /*keepdim=*/true) + options.eps).rsqrt();
    return {(normed * (1 + weight.to(wide.scalar_type()))).to(h.scalar_type()), h};
  }
  const auto scale = options.affine ? weight : at::ones({options.size}, stream.options());
  auto result = kernels::residual_norm(stream, branch, scale, bias, options.eps, options.rms, p);
  return {std::move(result.output), std::move(result.stream)};
}

Tensor OpenStream::closed() const {
  return branch.defined() ? sum + branch : sum;
}

}  // namespace levin::nn
