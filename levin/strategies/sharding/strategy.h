#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/distributed/mesh.h"
#include "levin/strategies/sharding/module.h"
#include "levin/strategies/sharding/ordered_residency.h"
#include "levin/strategies/sharding_options.h"
#include "levin/strategies/strategy.h"

namespace levin::detail {

/// What FSDP, ZeRO and Gemini have in common, after their own words are translated.
struct ShardingPlan {
  std::string name = "fsdp";
  std::optional<UnitPolicy> units = {};
  /// Ranks of one divided copy; 0: all.
  int shard_size = 0;
  /// ... or those of one node.
  bool hybrid_by_node = false;
  bool keeps_whole = false;
  bool reduces_at_end = false;
  ResidencyOptions residency = {};
  MixedPrecision mixed = {};
  /// Reduced gradients stay in the dtype of computation.
  bool grads_as_computed = false;
  bool offload = false;
  bool pin_memory = true;
  /// Folders for what is offloaded to disk; empty: host memory.
  std::string param_folder = {};
  std::string optimizer_folder = {};
  /// Parameters of fewer elements stay whole.
  int64_t persistence_threshold = 0;
  /// At most that many elements travel at once (but a parameter is never cut for it); 0: a unit does.
  int64_t most_together = 0;
  std::optional<UnitPolicy> checkpointing = {};
  bool checkpoints_on_host = false;
  bool optimizer_in_backward = false;
  bool broadcast = true;
  bool saves_full = false;
  /// Batch norm over the batches of all ranks.
  bool sync_batchnorm = false;
  CollectiveOptions collective = {};
};

/// What state_dict_type says: "full" is true, "sharded" false, anything else an Error.
bool is_full(std::string_view strategy, const std::string& state_dict_type);

/// A parameter and the unit that owns it: the innermost one that holds all places where it is registered.
struct OwnedParam {
  std::string name;
  Tensor param;
  /// Index into the units; their number for the root.
  size_t unit = 0;
};
/// Every parameter once. `units` are as select_units gives them.
std::vector<OwnedParam> owned_params(torch::nn::Module& module, const std::vector<SelectedUnit>& units);

/// How many ranks of the group share this rank's host memory. Every rank must call.
int ranks_on_this_node(Collective& group);

/// What setup refuses, by what is known before there are ranks: estimates of memory ask the same. `strategy` stands in
/// the errors, `ranks` is over how many parameters are divided.
void check_divided_optimizer(std::string_view strategy, std::string_view optimizer,
                             const std::optional<OptimizerTraits>& traits, int ranks);
void check_optimizer_in_backward(std::string_view strategy, const PrecisionPlan& precision, std::string_view optimizer,
                                 const std::optional<OptimizerTraits>& traits, int ranks);

/// Strategies that spread the training state over ranks and memories.
class ShardedStrategy : public Strategy {
 public:
  explicit ShardedStrategy(ShardingPlan plan);

  std::string name() const override { return plan_.name; }
  CollectiveOptions collective_options() const override { return plan_.collective; }
  void connect(std::shared_ptr<Collective> group, c10::Device device) override;
  Collective& group() const override;
  c10::Device device() const override { return device_; }
  void set_precision(const PrecisionPlan& precision) override { precision_ = precision; }
  void sync_batchnorm() override { plan_.sync_batchnorm = true; }
  bool places_modules() const override { return true; }
  ShardMap* shards() override { return shards_.get(); }
  std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) override;
  Optimizer setup_optimizer(Optimizer optimizer) override;
  Tensor grad_norm(std::span<const Tensor> params, double norm_type) override;
  StateLayout layout() const override;

  const ShardingPlan& plan() const { return plan_; }

 protected:
  /// Which units are gathered one by one.
  virtual std::vector<SelectedUnit> choose_units(torch::nn::Module& module) const;
  /// Groups of a module, and what each unit needs of them (the root last).
  struct Divided {
    std::vector<std::unique_ptr<ShardGroup>> groups;
    std::vector<ShardedUnit> units;
  };
  virtual Divided divide(torch::nn::Module& module, const std::vector<SelectedUnit>& units);
  virtual std::unique_ptr<Residency> make_residency(const Divided& divided);
  GroupOptions group_options() const;
  /// What an optimizer is told of the parameters.
  ParamShards shards_of_params() const;
  void place_buffers(torch::nn::Module& module) const;
  /// Throws when offloaded state would not fit into host memory; called before anything is allocated.
  virtual void check_host_memory(const torch::nn::Module& module) const;

  ShardingPlan plan_;
  PrecisionPlan precision_;
  std::shared_ptr<Collective> group_;
  std::shared_ptr<Collective> ranks_;
  std::shared_ptr<Collective> replicas_;
  std::shared_ptr<Lanes> lanes_;
  c10::Device device_ = at::kCPU;
  std::shared_ptr<TensorShards> shards_;
  std::vector<Attachment> checkpointing_;
  /// Of modules that are set up; they leave when they die.
  std::vector<std::weak_ptr<ShardedModule*>> modules_;
};

}  // namespace levin::detail
