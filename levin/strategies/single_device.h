#pragma once

#include "levin/strategies/strategy.h"

namespace levin {

/// One process, one device: nothing is spread. This is the strategy to read first: every other one adds to it.
class SingleDeviceStrategy : public Strategy {
 public:
  std::string name() const override { return "single_device"; }
  void connect(std::shared_ptr<Collective> group, c10::Device device) override;
  Collective& group() const override;
  c10::Device device() const override { return device_; }
  /// The batch of one process is the whole one.
  void sync_batchnorm() override {}
  std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) override;

 private:
  std::shared_ptr<Collective> group_;
  c10::Device device_ = at::kCPU;
};

}  // namespace levin
