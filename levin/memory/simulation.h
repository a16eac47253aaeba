#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "levin/memory/groups.h"
#include "levin/memory/step.h"
#include "levin/strategies/layout.h"
#include "levin/strategies/sharding/group_plan.h"
#include "levin/strategies/sharding/schedule.h"

namespace levin::detail {

/// The schedule of a sharded module, driven by a trace of a step, with groups of which only the bytes are counted.
class ShardingSimulation {
 public:
  /// `sizes` are those of the plan's groups. `accumulate`: micro-batches of an optimizer step, of which the last one is
  /// simulated. `saved`: bytes that forward keeps for backward. `note` is called whenever the sum of bytes may be at
  /// its highest.
  ShardingSimulation(const StateLayout& layout, const GroupFigures& figures, const GroupPlan& plan,
                     const std::vector<GroupSizes>& sizes, const std::vector<StepTrace::Mark>& marks, int accumulate,
                     int64_t saved, std::function<void()> note);

  void follow(const StepTrace::Mark& mark);
  /// A full gradient of a parameter of the group was allocated.
  void add_gradient(size_t group, int64_t bytes);

  /// Gathered parameters that do not stay, and the buffers of collectives.
  int64_t parameters() const { return ledger_.gathered + ledger_.arrived + ledger_.sent; }
  /// Full gradients, and reduced ones.
  int64_t gradients() const { return ledger_.full_gradients + ledger_.gradients; }
  int64_t full_gradients() const { return ledger_.full_gradients; }
  /// Reduced gradients in host memory.
  int64_t host_gradients() const { return ledger_.host_gradients + ledger_.host_incoming + ledger_.host_rooms; }
  /// Pinned memory besides that of the gradients themselves.
  int64_t host_rooms() const { return ledger_.host_rooms; }

 private:
  bool is_alone() const { return ledger_.figures.ranks * ledger_.figures.replicas == 1; }
  void renew_outdated();
  void follow_forward(const StepTrace::Mark& mark);
  void follow_backward(const StepTrace::Mark& mark);
  void end_backward();

  GroupLedger ledger_;
  std::vector<std::unique_ptr<MeteredGroup>> groups_;
  std::unique_ptr<Schedule> schedule_;
  const int64_t saved_;
  bool in_forward_ = false, in_backward_ = false, changed_ = true;
};

}  // namespace levin::detail
