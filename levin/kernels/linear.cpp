#include "levin/kernels/linear.h"

#include <ATen/ops/linear.h>

#include "levin/kernels/fp8_layers.h"

namespace levin::kernels {

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (const auto layer = fp8_layer(x, weight)) return fp8_linear(x, weight, bias, *layer);
  return at::linear(x, weight, bias);
}

}  // namespace levin::kernels
