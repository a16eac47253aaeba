#include "levin/strategies/single_device.h"

namespace levin {

// What a strategy says of itself. The batch of one process is that of all of them, so batch norm has nothing to do.
SingleDeviceStrategy::SingleDeviceStrategy()
    : Strategy({.name = "single_device", .one_process = true, .syncs_batchnorm = true}) {}

// The names under which it can be chosen; choice.cpp has a row for them.
std::vector<NamedStrategy> SingleDeviceStrategy::names() {
  return {{"single_device", [] { return std::make_unique<SingleDeviceStrategy>(); }}};
}

// The module is on its device and in its dtype already. A strategy that has something to do around its forward and
// backward returns an object for it; here there is nothing, and null says so: the step then pays for nothing.
std::unique_ptr<ModuleSync> SingleDeviceStrategy::setup_module(torch::nn::Module&) {
  return nullptr;
}

// The optimizer stays as it is (setup_optimizer of the base), the gradients are full, so their norm is the plain one
// (grad_norm of the base), and all state is here (layout_over of the base).

}  // namespace levin
