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
#include "levin/strategies/module_sync.h"
#include "levin/strategies/sharding/group.h"
#include "levin/strategies/sharding/schedule.h"
#include "levin/strategies/sharding/unit_optimizer.h"
#include "levin/strategies/sync_batchnorm.h"

namespace levin::detail {

struct NamedState;

/// A unit and the groups that it computes with. The unit of the rest of the model is the root, and has no name.
struct ShardedUnit {
  std::string name;
  Unit* unit = nullptr;
  std::vector<ShardGroup*> groups = {};
  /// Its number in the schedule.
  size_t number = 0;
};

struct ShardedModuleOptions {
  /// For messages.
  std::string strategy = "fsdp";
  /// Units that are not gathered separately, but have parameters of the root.
  std::vector<Unit*> root_users = {};
  /// Ranks that have the same buffers: rank 0's, from before each forward that can be differentiated.
  std::shared_ptr<Collective> everyone = {};
  /// All ranks; null: there is one.
  std::shared_ptr<Collective> all_ranks = {};
  ScheduleOptions schedule = {};
  /// Units whose optimizer has no state are stepped on the device, in backward.
  bool updates_in_place = false;
  /// Ranks that gather together.
  std::shared_ptr<Collective> ranks = {};
  /// Ranks over whose batches batch norm takes its statistics; none: each rank has its own.
  std::shared_ptr<Collective> batchnorm = {};
};

/// A module whose parameters are sharded over ranks, or live in host memory, and are gathered for the unit that
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
  void after_backward(const std::exception* failure) override;
  void set_sync(bool enabled) override { sync_ = enabled; }
  void sync_buffers() override;
  bool communicates() const override { return !alone_; }
  std::string prepare_capture(bool keeps_gradients) override;
  void after_replay() override;
  void capture_failed() override;
  uint64_t layout_version() const override;
  int weight_part(const Tensor& weight) const override;
  void enter_weights(int part) override;
  void leave_weights(int part) override;

  const std::vector<std::unique_ptr<ShardGroup>>& groups() const { return groups_; }
  Residency& residency() const { return schedule_->residency(); }
  /// Empty when this object is gone.
  std::weak_ptr<ShardedModule*> self() const { return self_; }
  /// An optimizer that steps in backward.
  void add_optimizer(std::weak_ptr<UnitOptimizer> optimizer) { optimizers_.push_back(std::move(optimizer)); }

 private:
  class Around;
  class Arrival;
  class Entrance;
  struct Link;

  void begin_forward();
  std::optional<int64_t> bytes_of_others() const;
  void renew_outdated();
  void resume_forward();

  void gather_aside(const std::vector<ShardGroup*>& groups);
  void begin_inner(const std::string& unit);
  void end_inner();
  void check_fired();

  void use_again(ShardedUnit& unit);
  void after_recompute();
  std::vector<std::shared_ptr<UnitOptimizer>> stateless_optimizers() const;
  void plan_updates();
  void pre_backward(ShardedUnit& unit);
  bool post_backward(ShardedUnit& unit);
  /// Alone there is no communication to be saved by waiting, but memory.
  bool reduces() const { return sync_ || alone_; }
  bool sends_grads() const { return reduces() && !options_.schedule.reduces_at_end && !schedule_->holds_groups(); }
  void step_reduced(ShardGroup& group);
  void end_backward();
  void backward_failed(const std::exception& error);
  void watch_inputs(Call& call, ShardedUnit& unit);
  void watch_outputs(Call& call, ShardedUnit& unit);
  void watch_gradients(ShardedUnit& unit);
  void watch_arrivals(ShardGroup& group);
  void abandon();
  void forget_pass(bool keeps_gradients);

  std::vector<std::unique_ptr<ShardGroup>> groups_;
  WorkerThread looking_;  // at shards that may have been changed
  std::vector<ShardedUnit> units_;
  std::shared_ptr<Lanes> lanes_;
  const ShardedModuleOptions options_;
  std::unique_ptr<Schedule> schedule_;
  std::vector<NamedState> buffers_;
  std::vector<Attachment> attachments_;
  FiredCheck fired_;
  std::shared_ptr<Link> link_;
  std::shared_ptr<ShardedModule*> self_ = std::make_shared<ShardedModule*>(this);
  std::vector<std::weak_ptr<UnitOptimizer>> optimizers_;
  std::optional<SyncBatchNormScope> forward_batchnorm_;
  std::optional<SyncBatchNormScope> backward_batchnorm_;  // for units that compute again there
  std::optional<int64_t> bytes_before_forward_;           // of others than gathered groups
  std::vector<ShardGroup*> gathered_aside_;               // by torch::autograd::grad outside of backward
  bool inner_ = false;                                    // in one
  bool alone_ = true;
  bool sync_ = true;
  bool training_ = false;
  bool shows_full_ = false;
  bool in_backward_ = false;
  bool armed_ = false;
  bool hands_out_leaf_ = false;
  int depth_ = 0;
  int exceptions_ = 0;
};

}  // namespace levin::detail
