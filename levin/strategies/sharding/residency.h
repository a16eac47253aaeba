#pragma once

#include <cstdint>
#include <vector>

#include "levin/strategies/sharding/scheduled_group.h"

namespace levin::detail {

enum class Pass : uint8_t { kForward, kBackward };

/// Decides how long groups stay gathered when nobody computes with them, and which are gathered ahead. Called by the
/// schedule, always on the thread that runs forward or backward.
class Residency {
 public:
  using Groups = std::vector<ScheduledGroup*>;

  virtual ~Residency() = default;

  /// A pass over the model begins; `training` when a backward may follow a forward.
  virtual void begin_pass(Pass, bool /*training*/) {}
  /// Units are about to compute with `needed`. Releases others when there is not enough room for those of them that
  /// are not gathered. (They are gathered right after this.)
  virtual void before_use(const Groups& /*needed*/) {}
  /// Groups to begin gathering now, after `needed`, in order.
  virtual Groups ahead(const Groups& needed) = 0;
  /// Nobody computes with the group any more in this pass: whether to release it.
  virtual bool release_after_use(ScheduledGroup& group, Pass pass) = 0;
  /// Activations that forward has kept for this backward take as much memory as this many elements of parameters. It is
  /// free when backward ends.
  virtual void set_room(int64_t /*elements*/) {}
  /// The group was stepped on the device: whether it stays there for the next forward.
  virtual bool stays(const ScheduledGroup&) const { return false; }
  /// The gradients of the group were handed to the reduction.
  virtual void after_reduce(ScheduledGroup&) {}
  virtual void end_pass(Pass) {}
  /// The pass failed, on this rank at least; called in place of end_pass.
  virtual void abandon_pass(Pass pass) { end_pass(pass); }
};

}  // namespace levin::detail
