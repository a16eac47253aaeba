#pragma once

#include <memory>
#include <vector>

#include "levin/distributed/mesh.h"
#include "levin/nn/experts/split.h"
#include "levin/strategies/choice.h"
#include "levin/strategies/ddp.h"

namespace levin {

/// Every rank sees other data, and each group of `size` neighbouring ranks shares the experts of every layer: tokens
/// travel to their experts and back (levin/nn/experts). Everything else is a copy. Gradients are averaged as under
/// "ddp": those of experts over the ranks that have the same ones, all others over all ranks.
///
///     Fabric fabric({.strategy = ExpertParallelOptions{.size = 4}, .devices = 8});   // each expert on 2 ranks
class ExpertStrategy : public Strategy {
 public:
  explicit ExpertStrategy(ExpertParallelOptions options);
  static std::vector<NamedStrategy> names();

  std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) override;
  Optimizer setup_optimizer(Optimizer optimizer) override;
  /// Experts of ranks; checkpoints hold whole tensors, as one process writes them.
  ShardMap* shards() override { return mesh_ && mesh_->size("expert") > 1 ? shards_.get() : nullptr; }
  Tensor grad_norm(std::span<const Tensor> params, double norm_type) override;
  StateLayout layout_over(int ranks) const override;
  std::string why_not_captured() const override { return "ranks exchange tokens within a step"; }

  const ExpertParallelOptions& options() const { return options_; }
  /// Axes "copy" (ranks that have the same experts) and "expert".
  const Mesh& mesh() const { return *mesh_; }
  /// Of the modules that were set up.
  const std::vector<std::shared_ptr<ExpertSplit>>& splits() const { return splits_; }
  /// What a parameter is; null for one that is no shard.
  const TensorSplit::Parameter* find(const Tensor& parameter) const;

 protected:
  void on_connect() override;

 private:
  ExpertParallelOptions options_;
  std::unique_ptr<Mesh> mesh_;
  /// Of what every rank has, and of experts.
  DdpStrategy copies_, expert_copies_;
  std::vector<std::shared_ptr<ExpertSplit>> splits_;
  std::unique_ptr<TensorShards> shards_;
};

}  // namespace levin
