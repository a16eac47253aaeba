#pragma once

#include <memory>
#include <vector>

#include "levin/distributed/mesh.h"
#include "levin/nn/tensor/split.h"
#include "levin/strategies/choice.h"
#include "levin/strategies/ddp.h"

namespace levin {

/// Each group of `size` neighbouring ranks has one model together, a part of every large layer on each
/// (levin/nn/tensor); groups have copies, of which gradients are averaged as under "ddp". Ranks of a group see the same
/// batches.
///
///     Fabric fabric({.strategy = TensorParallelOptions{.size = 2}, .devices = 8});   // 4 copies of 2 ranks
class TensorStrategy : public Strategy {
 public:
  explicit TensorStrategy(TensorParallelOptions options);
  static std::vector<NamedStrategy> names();

  std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) override;
  Optimizer setup_optimizer(Optimizer optimizer) override;
  /// Parts of ranks; checkpoints hold whole tensors, as one process writes them.
  ShardMap* shards() override { return splits_.empty() ? nullptr : shards_.get(); }
  Tensor grad_norm(std::span<const Tensor> params, double norm_type) override;
  DataPlace data_place() const override { return {mesh_->coordinate("batch"), mesh_->size("batch")}; }
  StateLayout layout_over(int ranks) const override;
  std::string why_not_captured() const override { return "ranks that share layers communicate within a step"; }

  const TensorParallelOptions& options() const { return options_; }
  /// dp_replicate x tp.
  const Mesh& mesh() const { return *mesh_; }
  /// Of the modules that were set up.
  const std::vector<std::shared_ptr<TensorSplit>>& splits() const { return splits_; }
  /// What a parameter is; null for one of no module that was set up.
  const TensorSplit::Parameter* find(const Tensor& parameter) const;

 protected:
  void on_connect() override;

 private:
  TensorParallelOptions options_;
  std::unique_ptr<Mesh> mesh_;
  DdpStrategy copies_;
  std::vector<std::shared_ptr<TensorSplit>> splits_;
  std::unique_ptr<TensorShards> shards_;
};

}  // namespace levin
