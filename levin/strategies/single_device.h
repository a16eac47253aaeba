#pragma once

#include <memory>
#include <vector>

#include "levin/strategies/choice.h"

namespace levin {

/// One process, one device: nothing is spread. This is the strategy to read first: every other one adds to it.
class SingleDeviceStrategy : public Strategy {
 public:
  SingleDeviceStrategy();
  static std::vector<NamedStrategy> names();

  std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) override;
};

}  // namespace levin
