#include "levin/memory/simulation.h"

#include <utility>

namespace levin::detail {

ShardingSimulation::ShardingSimulation(const StateLayout& layout, const GroupFigures& figures, const GroupPlan& plan,
                                       const std::vector<GroupSizes>& sizes, const std::vector<StepTrace::Mark>& marks,
                                       int accumulate, int64_t saved, std::function<void()> note)
    : ledger_{.figures = figures, .note = [] {}}, saved_(saved) {
  Schedule::Groups groups;
  for (const auto& each : sizes) {
    groups_.push_back(std::make_unique<MeteredGroup>(ledger_, each));
    groups.push_back(groups_.back().get());
  }
  std::vector<Schedule::Groups> units;
  for (const auto& needs : plan.needs) {
    auto& unit = units.emplace_back();
    for (const auto group : needs) unit.push_back(groups[group]);
  }
  const bool alone = is_alone();
  schedule_ = std::make_unique<Schedule>(groups, std::move(units), layout.make_residency(groups, plan),
                                         ScheduleOptions{.keeps_full = figures.keeps_full,
                                                         .reduces_at_end = layout.reduces_at_end,
                                                         .own_order = figures.keeps_full && !alone,
                                                         .gathers_ahead = layout.gathers_ahead});
  // In the first step the schedule learns in which order groups are used. The second one counts.
  for (const auto& mark : marks) follow(mark);
  if (schedule_->learns_order()) schedule_->adopt_order(schedule_->seen_order());
  ledger_ = {.figures = figures, .note = std::move(note)};
  // Micro-batches that only accumulate change no parameter.
  for (const auto& group : groups_) group->begin_step(/*stale=*/accumulate == 1 || alone);
  if (accumulate == 1 || !alone) return;
  for (const auto& group : groups_) group->keep_sum();
}

void ShardingSimulation::follow(const StepTrace::Mark& mark) {
  const bool forward = mark.part == StepPart::kForward;
  const auto unit = static_cast<size_t>(mark.unit);
  if (mark.recomputed) {
    if (is_alone()) schedule_->settle_early();
  } else if (mark.part == StepPart::kOptimizer) {
    if (mark.begins) end_backward();
  } else if (mark.unit < 0) {
    forward ? follow_forward(mark) : follow_backward(mark);
  } else if (forward && mark.begins) {
    schedule_->enter_forward(unit);
    schedule_->expect_backward(unit);
  } else if (forward) {
    schedule_->leave_forward(unit);
  } else if (mark.begins) {
    schedule_->enter_backward(unit);
  } else {
    schedule_->leave_backward(unit);
  }
}

/// Full parameters that stay: after gradients were reduced they are expected to be out of date.
void ShardingSimulation::renew_outdated() {
  const bool changed = std::exchange(changed_, false);
  if (!ledger_.figures.keeps_full) return;
  for (const auto& group : groups_) changed ? group->release(/*keep_memory=*/true) : group->compare();
}

void ShardingSimulation::follow_forward(const StepTrace::Mark& mark) {
  if (mark.begins) {
    renew_outdated();
    schedule_->begin_forward(/*training=*/true);
  } else {
    schedule_->end_forward();
  }
  in_forward_ = mark.begins;
}

void ShardingSimulation::follow_backward(const StepTrace::Mark& mark) {
  if (!mark.begins) return end_backward();
  // A step of one batch says nothing of the end of its forward.
  if (std::exchange(in_forward_, false)) schedule_->end_forward();
  // One rank reduces in every backward.
  changed_ = mark.reduces || is_alone();
  schedule_->begin_backward(changed_, saved_ / ledger_.figures.computed);
  schedule_->use_root();
  in_backward_ = true;
}

void ShardingSimulation::end_backward() {
  if (!std::exchange(in_backward_, false)) return;
  schedule_->end_reductions(/*used=*/true);
  ledger_.host_incoming = 0;
  schedule_->end_backward();
}

void ShardingSimulation::add_gradient(size_t group, int64_t bytes) {
  if (groups_[group]->expects_gradient()) schedule_->settle_early();
  groups_[group]->add_gradient(bytes);
}

}  // namespace levin::detail
