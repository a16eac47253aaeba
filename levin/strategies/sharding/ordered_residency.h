#pragma once

#include <vector>

#include "levin/strategies/sharding/residency.h"

namespace levin::detail {

struct ResidencyOptions {
  /// Whole parameters are given up after forward and gathered again for backward.
  bool releases_after_forward = true;
  /// ... and after backward.
  bool releases_after_backward = true;
  /// Uses that are gathered ahead of the one at hand.
  int forward_prefetch = 1;
  int backward_prefetch = 1;
  /// At most that many elements are gathered ahead (but one use always), and whole in all; 0: no limit.
  int64_t most_ahead = 0;
  int64_t most_live = 0;
};

/// Groups come when they are used and go right after; the next ones are those that came next in the pass before.
class OrderedResidency : public Residency {
 public:
  explicit OrderedResidency(const ResidencyOptions& options) : options_(options) {}

  void begin_pass(Pass pass, bool training) override;
  void before_use(const std::vector<ShardGroup*>& needed) override;
  std::vector<ShardGroup*> ahead(const std::vector<ShardGroup*>& needed) override;
  bool release_after_use(ShardGroup& group, Pass pass) override;
  void end_pass(Pass pass) override;

 private:
  using Use = std::vector<ShardGroup*>;
  bool is_root(const Use& needed) const;

  ResidencyOptions options_;
  Pass pass_ = Pass::kForward;
  bool training_ = false;
  std::vector<Use> before_;   // of the forward before
  std::vector<Use> now_;      // of this forward
  std::vector<Use> to_come_;  // of all forwards that have not been differentiated
  size_t cursor_ = 0;         // backward: everything from here on is done
};

}  // namespace levin::detail
