#include "levin/strategies/single_device.h"

#include "levin/core/error.h"

namespace levin {

// A strategy is made by its name before anything is known of the run, and told its place by Fabric::launch. That is the
// one moment to refuse a world that it cannot serve.
void SingleDeviceStrategy::connect(std::shared_ptr<Collective> group, c10::Device device) {
  LEVIN_CHECK(group->size() == 1, "[strategy] \"single_device\" is for one process, and there are ", group->size(),
              "; \"ddp\" is the one that keeps a copy of the model in each");
  group_ = std::move(group);
  device_ = device;
}

Collective& SingleDeviceStrategy::group() const {
  LEVIN_CHECK(group_, "[strategy] \"single_device\" has not been connected; call launch() first");
  return *group_;
}

// The module is on its device and in its dtype already. A strategy that has something to do around its forward and
// backward returns an object for it; here there is nothing, and null says so: the step then pays for nothing.
std::unique_ptr<ModuleSync> SingleDeviceStrategy::setup_module(torch::nn::Module&) {
  return nullptr;
}

// The optimizer stays as it is (setup_optimizer of the base), and the gradients are whole, so their norm is the plain
// one (grad_norm of the base).

}  // namespace levin
