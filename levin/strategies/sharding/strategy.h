#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/distributed/mesh.h"
#include "levin/strategies/choice.h"
#include "levin/strategies/layout.h"
#include "levin/strategies/sharding/group_plan.h"
#include "levin/strategies/sharding/module.h"
#include "levin/strategies/sharding/ordered_residency.h"
#include "levin/strategies/sharding/owned_params.h"

namespace levin::detail {

/// What FSDP, ZeRO and Gemini have in common, after their own words are translated.
struct ShardingPlan {
  std::string name = "fsdp";
  std::optional<UnitPolicy> units = {};
  /// Ranks of one sharded copy; 0: all.
  int shard_size = 0;
  /// ... or those of one node.
  bool hybrid_by_node = false;
  /// Full parameters keep their memory between steps.
  bool keeps_full = false;
  bool reduces_at_end = false;
  ResidencyOptions residency = {};
  MixedPrecision mixed = {};
  /// Reduced gradients stay in the dtype of computation.
  bool grads_as_computed = false;
  bool offload = false;
  bool pin_memory = true;
  bool pin_gradients = true;
  /// Of offloaded shards the device keeps a copy, from which they are gathered.
  bool keeps_device_shards = false;
  /// Folders for what is offloaded to disk; empty: host memory.
  std::string param_folder = {};
  std::string optimizer_folder = {};
  /// Parameters of fewer elements stay gathered in a step.
  int64_t persistence_threshold = 0;
  /// At most N elements are gathered and reduced together (but a parameter is never split for it); 0: a unit.
  int64_t most_together = 0;
  std::optional<UnitPolicy> checkpointing = {};
  bool checkpoints_on_host = false;
  bool optimizer_in_backward = false;
  /// ... which steps units on the device where it has no state, and only their new values go to host memory.
  bool updates_in_place = false;
  bool broadcast = true;
  bool saves_full = false;
  /// Batch norm over the batches of all ranks.
  bool sync_batchnorm = false;
  CollectiveOptions collective = {};
};

/// What state_dict_type says: "full" is true, "sharded" false, anything else an Error.
bool is_full(std::string_view strategy, const std::string& state_dict_type);

/// Number of ranks of the group that share this rank's host memory. Every rank must call.
int ranks_on_this_node(Collective& group);

/// What setup refuses, by what is known before there are ranks: memory estimates ask the same. `strategy` stands in the
/// errors, `ranks` is over how many parameters are sharded.
void check_sharded_optimizer(std::string_view strategy, std::string_view optimizer,
                             const std::optional<OptimizerTraits>& traits, int ranks);
void check_optimizer_in_backward(std::string_view strategy, const PrecisionPlan& precision, std::string_view optimizer,
                                 const std::optional<OptimizerTraits>& traits, int ranks);

/// Parameters that other ranks have together than the rest: experts, which are spread over ranks already. They are
/// sharded over `ranks`, in copies over `replicas`, and are gathered and reduced apart from the others.
struct SpreadParams {
  /// Whether a parameter is one of them.
  std::function<bool(const Tensor&)> takes;
  std::shared_ptr<Collective> ranks, replicas;
  /// Elements of the tensor that one process has: ranks may have different numbers of them.
  std::function<int64_t(const Tensor&)> whole_numel;
};

/// Strategies that spread the training state over ranks and memories.
class ShardedStrategy : public Strategy {
 public:
  explicit ShardedStrategy(ShardingPlan plan);

  ShardMap* shards() override { return shards_.get(); }
  std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) override;
  Optimizer setup_optimizer(Optimizer optimizer) override;
  Tensor grad_norm(std::span<const Tensor> params, double norm_type) override;
  StateLayout layout_over(int ranks) const override;
  std::string why_not_captured() const override;

  const ShardingPlan& plan() const { return plan_; }
  /// Parameters for which it says no are left alone: other ranks have them.
  void set_filter(std::function<bool(const Tensor&)> takes) { takes_ = std::move(takes); }
  /// Of modules that are set up later. Gradients of these parameters are averaged over their `ranks` and `replicas`
  /// alone; `grad_norm` does not know them.
  void set_spread(SpreadParams spread);

 protected:
  /// Groups of a module, and what each unit needs of them (the root last).
  struct Sharded {
    std::vector<std::unique_ptr<ShardGroup>> groups;
    std::vector<ShardedUnit> units;
  };
  void on_connect() override;
  /// In which dtype the shards of a parameter of this dtype are kept.
  virtual c10::ScalarType shard_dtype(c10::ScalarType own) const { return precision_.params.value_or(own); }
  /// Which parameters are gathered together.
  virtual GroupPlan plan_groups(const std::vector<GroupedParam>& params, size_t units);
  /// How a group of the plan is kept.
  virtual GroupOptions options_of_group(const GroupPlan& plan, size_t group) const;
  virtual std::unique_ptr<Residency> make_residency(const Sharded& sharded);
  /// Throws when offloaded state would not fit into host memory; called before anything is allocated.
  virtual void check_host_memory(const torch::nn::Module& module) const;
  GroupOptions group_options() const;

  ShardingPlan plan_;
  std::function<bool(const Tensor&)> takes_;
  SpreadParams spread_;
  std::shared_ptr<Collective> ranks_;
  std::shared_ptr<Collective> replicas_;
  std::shared_ptr<Lanes> lanes_;
  std::shared_ptr<TensorShards> shards_;
  std::vector<Attachment> checkpointing_;
  /// Of modules that are set up; empty when they are gone.
  std::vector<std::weak_ptr<ShardedModule*>> modules_;

 private:
  std::vector<SelectedUnit> choose_units(torch::nn::Module& module) const;
  Sharded shard(torch::nn::Module& module, const std::vector<SelectedUnit>& units);
  bool is_spread(const Tensor& param) const { return spread_.takes && spread_.takes(param); }
  /// Over how many ranks a parameter is sharded.
  int shards_of(const Tensor& param) const { return (is_spread(param) ? spread_.ranks : ranks_)->size(); }
  /// Groups of parameters `of` those that are owned, behind the groups that are there.
  void add_groups(Sharded& sharded, const std::vector<OwnedParam>& owned, const std::vector<size_t>& of, bool spread);
  void place_buffers(torch::nn::Module& module) const;
  /// Refuses a module whose optimizer was set up before it: its hooks would step by gradients that are not reduced.
  void check_not_stepped(const torch::nn::Module& module) const;
  /// What an optimizer is told of the parameters.
  ParamShards shards_of_params() const;
};

}  // namespace levin::detail
