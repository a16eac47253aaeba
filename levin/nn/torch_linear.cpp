#include <ATen/ops/linear.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/linear.h>

#include "levin/kernels/played_device.h"

// The forward of torch::nn::Linear, in place of the one in LibTorch, which multiplies and then adds the bias to the
// result (3 dimensions and more): a pass over the result that Python's torch.nn.Linear does not make. A program finds
// this definition first, since it links Levin before LibTorch; one that does not computes as LibTorch does. In float32
// on the CPU the operators stay those of LibTorch, to the bit.
namespace torch::nn {

Tensor LinearImpl::forward(const Tensor& input) {
  const bool fused =
      levin::kernels::kernel_device(input) == c10::kCUDA || levin::kernels::detail::autocast_dtype(input);
  return fused ? at::linear(input, weight, bias) : functional::linear(input, weight, bias);
}

}  // namespace torch::nn
