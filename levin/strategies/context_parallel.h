#pragma once

#include <memory>
#include <vector>

#include "levin/distributed/mesh.h"
#include "levin/nn/context/split.h"
#include "levin/strategies/choice.h"
#include "levin/strategies/ddp.h"

namespace levin {

/// Each group of `size` neighbouring ranks has every sequence together, some of its tokens on each
/// (levin/nn/context); every rank has all of the model, and gradients are averaged over all ranks as under "ddp". Ranks
/// of a group see the same batches.
///
///     Fabric fabric({.strategy = ContextParallelOptions{.size = 4}, .devices = 8});   // 2 batches over 4 ranks each
class ContextStrategy : public Strategy {
 public:
  explicit ContextStrategy(ContextParallelOptions options);
  static std::vector<NamedStrategy> names();

  std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) override;
  DataPlace data_place() const override { return {mesh_->coordinate("data"), mesh_->size("data")}; }
  StateLayout layout_over(int ranks) const override;
  std::string why_not_captured() const override { return "ranks that share sequences communicate within a step"; }

  const ContextParallelOptions& options() const { return options_; }
  /// Axes "data" and "context".
  const Mesh& mesh() const { return *mesh_; }

 protected:
  void on_connect() override;

 private:
  ContextParallelOptions options_;
  std::unique_ptr<Mesh> mesh_;
  DdpStrategy copies_;
};

}  // namespace levin
