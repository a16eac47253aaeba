#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "levin/nn/policy.h"
#include "levin/strategies/sharding/residency.h"
#include "levin/strategies/sharding/unit_optimizer.h"
#include "levin/strategies/strategy.h"
#include "levin/strategies/sync_batchnorm.h"

namespace levin::detail {

struct NamedState;

/// A unit and the groups that it computes with. The unit of the rest of the model is the root, and has no name.
struct ShardedUnit {
  std::string name;
  Unit* unit = nullptr;
  std::vector<ShardGroup*> groups = {};
};

struct ShardedModuleOptions {
  /// For messages.
  std::string strategy = "fsdp";
  /// Units that are not gathered by themselves, but have parameters of the root.
  std::vector<Unit*> root_users = {};
  /// Ranks that have the same buffers: rank 0's, from before each forward that can be differentiated.
  std::shared_ptr<Collective> everyone = {};
  /// All ranks; null: there is one.
  std::shared_ptr<Collective> all_ranks = {};
  /// Whole parameters keep their memory between steps; only their values are renewed. Ranks may call units in any order
  /// then: gathering and reducing have an order of their own.
  bool keeps_whole = false;
  /// Gradients are reduced when backward has ended, not as they come.
  bool reduces_at_end = false;
  /// Ranks that gather together.
  std::shared_ptr<Collective> ranks = {};
  /// Ranks over whose batches batch norm takes its statistics; none: each rank has its own.
  std::shared_ptr<Collective> batchnorm = {};
  /// The next group of that order is gathered while one computes.
  bool gathers_ahead = true;
};

/// A module whose parameters are spread over ranks, or live in host memory, and come together for the unit that
/// computes.
class ShardedModule final : public ModuleSync {
 public:
  /// `units` have the root last. Groups are owned here.
  ShardedModule(torch::nn::Module& module, std::vector<std::unique_ptr<ShardGroup>> groups,
                std::vector<ShardedUnit> units, std::shared_ptr<Lanes> lanes, std::unique_ptr<Residency> residency,
                ShardedModuleOptions options);
  ~ShardedModule() override;

  void before_forward() override;
  void leave_forward() override;
  void after_forward(std::span<Tensor> outputs) override;
  void before_backward(const Tensor& loss) override;
  void after_backward() override;
  void backward_failed(const std::exception& error) override;
  void set_sync(bool enabled) override { sync_ = enabled; }
  void sync_buffers() override;

  const std::vector<std::unique_ptr<ShardGroup>>& groups() const { return groups_; }
  Residency& residency() const { return *residency_; }
  /// Empty when this object is gone.
  std::weak_ptr<ShardedModule*> self() const { return self_; }
  /// An optimizer that steps in backward.
  void add_optimizer(std::weak_ptr<UnitOptimizer> optimizer) { optimizers_.push_back(std::move(optimizer)); }

 private:
  class Around;
  class Entrance;
  struct Link;

  void begin_forward();
  void renew_outdated();
  void resume_forward();

  void use(ShardedUnit& unit);
  void use_in_order(const std::vector<ShardGroup*>& needed);
  void gather_rest();
  void gather_aside(const std::vector<ShardGroup*>& groups);
  void begin_inner(const std::string& unit);
  void end_inner();
  bool has_own_order() const { return options_.keeps_whole && options_.all_ranks; }
  void adopt_order();
  void check_fired();

  void pre_backward(ShardedUnit& unit);
  bool post_backward(ShardedUnit& unit);
  void done_with(ShardGroup& group);
  bool reduces_now() const;
  void reduce(ShardGroup& group);
  void reduce_ready();
  void reduce_rest();
  void settle_reduction();
  void watch_inputs(Call& call, ShardedUnit& unit);
  void watch_outputs(Call& call, ShardedUnit& unit);
  void watch_gradients(ShardedUnit& unit);
  void abandon();

  std::vector<std::unique_ptr<ShardGroup>> groups_;
  std::vector<ShardedUnit> units_;
  std::shared_ptr<Lanes> lanes_;
  std::unique_ptr<Residency> residency_;
  const ShardedModuleOptions options_;
  std::vector<NamedState> buffers_;
  std::vector<Attachment> attachments_;
  FiredCheck fired_;
  std::shared_ptr<Link> link_;
  std::shared_ptr<ShardedModule*> self_ = std::make_shared<ShardedModule*>(this);
  std::vector<std::weak_ptr<UnitOptimizer>> optimizers_;
  std::optional<SyncBatchNormScope> forward_batchnorm_;
  std::optional<SyncBatchNormScope> backward_batchnorm_;  // for units that compute again there
  ShardGroup* reducing_ = nullptr;
  // Where groups have an order of their own: it, how far it has come, and what this rank saw in the first step.
  std::vector<ShardGroup*> gather_order_, reduce_order_;
  size_t next_gather_ = 0, next_reduce_ = 0;
  std::vector<ShardGroup*> seen_uses_, seen_ready_;
  bool order_adopted_ = false;
  // torch::autograd::grad outside of backward: what it gathered, and whether its result was ever a graph itself.
  std::vector<ShardGroup*> gathered_aside_;
  bool inner_ = false;
  bool inner_graphs_ = false;
  bool alone_ = true;
  bool sync_ = true;
  bool training_ = false;
  bool shows_full_ = false;
  bool in_backward_ = false;
  bool armed_ = false;
  bool hands_out_leaf_ = false;
  bool changed_ = true;
  int depth_ = 0;
  int exceptions_ = 0;
};

}  // namespace levin::detail
