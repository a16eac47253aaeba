#pragma once

#include "levin/strategies/strategy.h"

namespace levin {

/// A copy of the model in every process; gradients are averaged while backward runs, by PyTorch's own reducer.
///
/// All ranks start from rank 0's parameters and buffers. A parameter that gets no gradient is an Error on all ranks,
/// which names it, unless `find_unused_parameters` is set.
class DdpStrategy : public Strategy {
 public:
  explicit DdpStrategy(DdpOptions options);

  std::string name() const override { return "ddp"; }
  CollectiveOptions collective_options() const override {
    return {.backend = options_.process_group_backend, .timeout = options_.timeout};
  }
  void connect(std::shared_ptr<Collective> group, c10::Device device) override;
  Collective& group() const override;
  c10::Device device() const override { return device_; }
  void sync_batchnorm() override { options_.sync_batchnorm = true; }
  std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) override;
  const DdpOptions& options() const { return options_; }

 private:
  DdpOptions options_;
  std::shared_ptr<Collective> group_;
  c10::Device device_ = at::kCPU;
  int modules_ = 0;
};

namespace detail {

/// A parameter or buffer under its name.
struct NamedState {
  std::string name;
  Tensor tensor;
};

/// Each tensor once, under the first of its names, however often it is registered.
std::vector<NamedState> unique_parameters(const torch::nn::Module& module);
std::vector<NamedState> unique_buffers(const torch::nn::Module& module);

/// Throws, on every rank and with the same line, when the states of the ranks differ in number, name, shape or dtype.
/// `kind` is "parameter" or "buffer".
void check_same_states(Collective& group, std::string_view kind, std::span<const NamedState> states);

/// Sends rank `src`'s values to all.
void broadcast_states(Collective& group, std::span<const NamedState> states, int src = 0);

}  // namespace detail
}  // namespace levin
