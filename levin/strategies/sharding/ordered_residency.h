#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "levin/strategies/sharding/residency.h"

namespace levin::detail {

struct ResidencyOptions {
  /// Full parameters are freed after forward and gathered again for backward.
  bool releases_after_forward = true;
  /// ... and after backward.
  bool releases_after_backward = true;
  /// What a forward uses last stays for backward, which needs it first.
  bool keeps_last = false;
  /// At most this many units that forward uses first stay after they were stepped on the device, as far as there is
  /// room; but not the very first, whose step has only ended. Half as many more are gathered ahead in the next forward:
  /// they come while those that stayed compute, where a copy takes about twice as long.
  int keeps_first = 0;
  /// Uses that are gathered ahead of the one at hand.
  int forward_prefetch = 1;
  int backward_prefetch = 1;
  /// At most N elements are gathered ahead (but one use always), and are gathered in all; 0: no limit.
  int64_t most_ahead = 0;
  int64_t most_live = 0;
};

/// Groups are gathered when they are used and released right after; the next ones are those that came next in the pass
/// before.
class OrderedResidency : public Residency {
 public:
  explicit OrderedResidency(const ResidencyOptions& options) : options_(options) {}

  void begin_pass(Pass pass, bool training) override;
  void before_use(const Groups& needed) override;
  Groups ahead(const Groups& needed) override;
  bool release_after_use(ScheduledGroup& group, Pass pass) override;
  void set_room(int64_t elements) override { room_ = elements; }
  bool stays(const ScheduledGroup& group) const override;
  void end_pass(Pass pass) override;

 private:
  bool is_root(const Groups& needed) const;
  bool is_last(const ScheduledGroup& group) const;

  ResidencyOptions options_;
  Pass pass_ = Pass::kForward;
  bool training_ = false;
  std::vector<Groups> before_;   // of the forward before
  std::vector<Groups> now_;      // of this forward
  std::vector<Groups> to_come_;  // of all forwards that have not been differentiated
  size_t cursor_ = 0;            // backward: everything from here on is done
  int stayed_ = 0;               // uses that were gathered when this forward began
  int64_t room_ = std::numeric_limits<int64_t>::max();
};

}  // namespace levin::detail
