#include "levin/nn/layers.h"

#include "levin/kernels/linear/linear.h"

namespace levin::nn {

Tensor LinearImpl::forward(const Tensor& input) {
  return kernels::linear(input, weight, bias);
}

}  // namespace levin::nn
