#include "levin/nn/torch_linear.h"

#include <cstring>

#include <ATen/ops/linear.h>
#include <dlfcn.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/linear.h>

#include "levin/core/log.h"
#include "levin/kernels/played_device.h"

// The forward of torch::nn::Linear, in place of the one in LibTorch, which multiplies and then adds the bias to the
// result (3 dimensions and more): a pass over the result that Python's torch.nn.Linear does not make. A program finds
// this definition first where it links Levin before LibTorch; one that does not computes as LibTorch does. In float32
// on the CPU the operators stay those of LibTorch, to the bit.
namespace torch::nn {

Tensor LinearImpl::forward(const Tensor& input) {
  const bool fused = levin::kernels::detail::runs_fused(input) || levin::kernels::detail::autocast_dtype(input);
  return fused ? at::linear(input, weight, bias) : functional::linear(input, weight, bias);
}

}  // namespace torch::nn

namespace levin::nn {
namespace {

/// The library, or program, that a function was found in.
const void* library_of(const void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 ? info.dli_fbase : nullptr;
}

void here() {}

}  // namespace

bool replaces_torch_linear() {
  // What a call of the member finds, as the linker has bound it.
  const auto forward = &torch::nn::LinearImpl::forward;
  const void* found = nullptr;
  static_assert(sizeof(forward) >= sizeof(found));
  std::memcpy(&found, &forward, sizeof(found));
  return library_of(found) == library_of(reinterpret_cast<const void*>(&here));
}

void hint_at_torch_linear(const torch::nn::Module& module) {
  if (replaces_torch_linear()) return;
  for (const auto& each : module.modules())
    if (each->as<torch::nn::LinearImpl>()) {
      warn_once(
          "torch::nn::Linear adds its bias in a pass of its own, since this program links LibTorch before Levin: name "
          "levin::levin first in target_link_libraries");
      return;
    }
}

}  // namespace levin::nn
