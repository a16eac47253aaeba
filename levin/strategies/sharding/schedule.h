#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levin/strategies/sharding/residency.h"

namespace levin::detail {

struct ScheduleOptions {
  /// Full parameters keep their memory between steps; only their values are renewed.
  bool keeps_full = false;
  /// Gradients are reduced when backward has ended, not as they come.
  bool reduces_at_end = false;
  /// Gathering and reducing have an order of their own: ranks may call units in any order, or not all of them.
  bool own_order = false;
  /// The next group of that order is gathered while one computes.
  bool gathers_ahead = true;
  /// Called when a reduction has ended.
  std::function<void(ScheduledGroup&)> on_reduced = {};
};

/// When the groups of a module are gathered, released and reduced. One source for the strategies and for the memory
/// estimate; whoever runs forward and backward tells it how far they have come.
///
/// Units are numbered; the last one is the root, the rest of the model. A step: begin_forward, enter_forward and
/// leave_forward of each unit, end_forward, begin_backward, use_root, enter_backward and leave_backward of each unit,
/// end_reductions, end_backward.
class Schedule {
 public:
  using Groups = std::vector<ScheduledGroup*>;

  /// `units` are the groups that each unit computes with, the root last.
  Schedule(Groups groups, std::vector<Groups> units, std::unique_ptr<Residency> residency, ScheduleOptions options);

  void begin_forward(bool training);
  void enter_forward(size_t unit);
  /// Its gradients will be computed: backward is to wait for it.
  void expect_backward(size_t unit);
  /// ... and will not, after all.
  void drop_backward(size_t unit);
  void leave_forward(size_t unit);
  void end_forward();
  /// Gathers what this rank did not use and others may have; `keeps` what was gathered.
  void gather_rest(bool keeps);

  /// `reduces`: gradients are reduced in this pass.
  /// `room`: what forward has kept (Residency::set_room), where that is known.
  void begin_backward(bool reduces, std::optional<int64_t> room = std::nullopt);
  void use_root() { use(units_.size() - 1); }
  void enter_backward(size_t unit);
  void leave_backward(size_t unit);
  /// Groups are used at times that nobody announces: from now on none is released or reduced before the end of
  /// backward.
  void hold_groups() { holds_ = true; }
  bool holds_groups() const { return holds_; }
  /// At most one reduction is under way; this ends it.
  void settle_reduction();
  /// ... where computation need not wait for it long. A whole unit that is copied has the time of the next one.
  void settle_early();
  /// The end of backward: what has not been reduced is. `used`: the module took part in the loss.
  void end_reductions(bool used);
  void end_backward();

  /// The pass failed.
  void abandon(Pass pass);

  /// Gathers what a unit computes with.
  void use(size_t unit);

  /// With an order of their own: once, after the first step, the order in which one rank has used groups and was done
  /// with them is adopted by all, so that little has to wait for its turn.
  bool learns_order() const { return options_.own_order && !order_adopted_; }
  std::string seen_order() const;
  void adopt_order(const std::string& seen);

  Residency& residency() const { return *residency_; }

 private:
  void use_in_order(const Groups& needed);
  void done_with(ScheduledGroup& group);
  void reduce(ScheduledGroup& group, bool frees = false);
  void reduce_ready();
  std::string numbers_of(const Groups& seen) const;
  void reorder(Groups& order, const std::string& numbers) const;

  const Groups groups_;
  const std::vector<Groups> units_;
  std::unique_ptr<Residency> residency_;
  const ScheduleOptions options_;
  ScheduledGroup* reducing_ = nullptr;
  bool frees_reduced_ = false;  // its full parameters, when that has ended
  // The order of their own, how far it has come, and what this rank saw in the first step.
  Groups gather_order_, reduce_order_;
  size_t next_gather_ = 0, next_reduce_ = 0;
  Groups seen_uses_, seen_ready_;
  bool order_adopted_ = false;
  bool training_ = false;
  bool reduces_ = true;
  bool holds_ = false;
};

}  // namespace levin::detail
