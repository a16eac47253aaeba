#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levin/distributed/mesh.h"
#include "levin/nn/experts/split.h"
#include "levin/nn/tensor/split.h"
#include "levin/strategies/choice.h"

namespace levin {

namespace detail {
class PipelinedModule;
}

/// A model over a mesh of ranks: its layers are split over tp, its sequences over cp, then what a rank has of the
/// layers is sharded over dp_shard x cp, in dp_replicate copies. Ranks of tp and cp see the same batches. With ep,
/// experts are spread over neighbours among dp_shard x cp, and sharded over the ranks that have the same ones.
///
///     Fabric fabric({.strategy = ModelParallelOptions{.mesh = {.dp_shard = 2, .tp = 2}}, .devices = 4});
class ModelParallelStrategy : public Strategy {
 public:
  explicit ModelParallelStrategy(ModelParallelOptions options);
  static std::vector<NamedStrategy> names();
  /// Of a name with sizes, for command lines: "model_parallel:dp_shard=2,tp=2,sequence_parallel". Of sizes that are not
  /// given dp_shard is what the others leave. More words: "schedule=1f1b", "chunks=2" and "microbatches=8" of the
  /// pipeline, "sharding=grad_op", "checkpointing=full" and "offload" of FSDP.
  static NamedStrategy named(const std::string& text);

  std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) override;
  Optimizer setup_optimizer(Optimizer optimizer) override;
  /// Shards of split parameters; checkpoints hold tensors as one process has them.
  ShardMap* shards() override;
  Tensor grad_norm(std::span<const Tensor> params, double norm_type) override;
  DataPlace data_place() const override;
  StateLayout layout_over(int ranks) const override;
  std::string why_not_captured() const override;
  void share_random_state() override;

  /// A module that was opened split is set up as it is: no rank has read more than its part.
  ///
  ///     auto model = models::open_model(folder, {.ranks = strategy.mesh().shared_group("tp")});
  ///     strategy.adopt_split(model.split);
  ///     auto net = fabric.setup(model.decoder);
  void adopt_split(std::shared_ptr<TensorSplit> split);

  const ModelParallelOptions& options() const { return options_; }
  /// After connect.
  const Mesh& mesh() const { return *mesh_; }
  /// Of the modules that were set up, where tp > 1.
  const std::vector<std::shared_ptr<TensorSplit>>& splits() const { return splits_; }
  /// What a parameter is; null for one of no module that was split.
  const TensorSplit::Parameter* find(const Tensor& parameter) const;
  /// Which experts of a parameter are here; null for one that is not spread over ep.
  const TensorSplit::Parameter* find_experts(const Tensor& parameter) const;

 protected:
  ModelParallelStrategy(std::string name, ModelParallelOptions options);
  void on_connect() override;
  /// What is done with ranks that have the same part of the layers; `ranks` of them share the state.
  virtual std::unique_ptr<Strategy> make_inner(int ranks) const;
  /// Whether checkpoints hold whole tensors in one file.
  virtual bool saves_full() const;

 private:
  void split(torch::nn::Module& module);
  /// Cuts a module into stages, and sets up what this rank has of it.
  std::unique_ptr<ModuleSync> setup_stages(torch::nn::Module& module);
  void take_values(torch::nn::Module& module);
  void take_value(const Tensor& parameter) const;
  /// Leaves this rank's experts, of ep, in a module.
  void spread_experts(torch::nn::Module& module);
  /// What this rank has of the tensor of one process, before it is sharded: of tp, and of that its experts.
  std::optional<TensorSlice> slice_of(const Tensor& parameter) const;
  /// What stage a parameter belongs to, and whether this rank counts and writes it; by default the rank does.
  bool is_first_holder(const Tensor& parameter) const;
  const detail::PipelinedModule* pipelined(const Tensor& parameter) const;
  /// Of a split that has just been made or adopted.
  void watch_split(const TensorSplit& split);
  void add_shards(const torch::nn::Module& module);
  ParamShards shards_of_params() const;

  ModelParallelOptions options_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Strategy> inner_;
  std::vector<std::shared_ptr<TensorSplit>> splits_;
  std::vector<std::shared_ptr<ExpertSplit>> expert_splits_;
  std::shared_ptr<TensorShards> shards_;
  /// Modules that are cut into stages; they live as long as what setup_module returned.
  std::vector<std::weak_ptr<detail::PipelinedModule*>> pipelines_;
};

}  // namespace levin
