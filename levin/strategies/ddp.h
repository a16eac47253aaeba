#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "levin/strategies/choice.h"

namespace levin {

/// A copy of the model in every process; gradients are averaged while backward runs, by PyTorch's own reducer.
///
/// All ranks start from rank 0's parameters and buffers. A parameter that gets no gradient is an Error on all ranks,
/// which names it, unless `find_unused_parameters` is set.
class DdpStrategy : public Strategy {
 public:
  explicit DdpStrategy(DdpOptions options);
  static std::vector<NamedStrategy> names();

  std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) override;
  StateLayout layout_over(int ranks) const override;
  std::string why_not_captured() const override { return why_group_not_captured(); }
  const DdpOptions& options() const { return options_; }
  /// Parameters for which it says no are left alone: neither broadcast nor averaged.
  void set_filter(std::function<bool(const Tensor&)> takes) { takes_ = std::move(takes); }

 private:
  std::function<bool(const Tensor&)> takes_;
  DdpOptions options_;
  int modules_ = 0;
};

}  // namespace levin
