#pragma once

#include <map>
#include <memory>
#include <vector>

#include "levin/distributed/mesh.h"
#include "levin/strategies/choice.h"
#include "levin/strategies/pipeline/runner.h"

namespace levin {

/// Groups of `size` ranks have one model together, each some stages of it (levin/strategies/pipeline); groups have
/// copies, of which gradients are averaged once per step. Ranks of a group see the same batches. A pipeline is the
/// outer axis: ranks 0 and 1 of four are the first stages of two copies, ranks 2 and 3 the second ones.
///
///     Fabric fabric({.strategy = PipelineOptions{.size = 2, .microbatches = 8}, .devices = 4});
///     auto loss = fabric.forward_backward(net, batch, [&](auto& part) { return loss_of(net(part["x"]), part["y"]); });
class PipelineStrategy : public Strategy {
 public:
  explicit PipelineStrategy(PipelineOptions options);
  static std::vector<NamedStrategy> names();

  std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) override;
  Optimizer setup_optimizer(Optimizer optimizer) override;
  /// What is on one rank alone; checkpoints hold whole tensors, as one process writes them.
  ShardMap* shards() override { return pipeline_size() > 1 ? shards_.get() : nullptr; }
  Tensor grad_norm(std::span<const Tensor> params, double norm_type) override;
  DataPlace data_place() const override { return {mesh_->coordinate("data"), mesh_->size("data")}; }
  StateLayout layout_over(int ranks) const override;
  std::string why_not_captured() const override { return "ranks that have stages communicate within a step"; }

  const PipelineOptions& options() const { return options_; }
  /// Axes "pipeline" and "data".
  const Mesh& mesh() const { return *mesh_; }
  int pipeline_size() const { return mesh_ ? mesh_->size("pipeline") : 1; }
  /// Micro-batches of a batch of that many rows: as the options say, or fewer where it has fewer rows.
  int microbatches(int64_t rows) const;
  /// Of the last module that was set up; null before.
  PipelineRunner* runner() const;
  const StageModule* stages() const;

 protected:
  void on_connect() override;

 private:
  class Sync;

  PipelineOptions options_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<TensorShards> shards_;
  /// Of modules that were set up: their syncs live as long as they do.
  std::vector<Sync*> syncs_;
};

}  // namespace levin
