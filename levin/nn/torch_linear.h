#pragma once

namespace torch::nn {
class Module;
}

namespace levin::nn {

/// Whether torch::nn::Linear adds its bias within the product on CUDA and under autocast. It does not in a program that
/// links LibTorch before Levin.
bool replaces_torch_linear();
/// Says so once, where the module has such a layer.
void hint_at_torch_linear(const torch::nn::Module& module);

}  // namespace levin::nn
