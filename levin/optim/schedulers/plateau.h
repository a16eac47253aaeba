#pragma once

#include <cstdint>
#include <string>

#include "levin/optim/per_group.h"
#include "levin/optim/schedulers/scheduler.h"

namespace levin::optim {

struct ReduceLROnPlateauOptions {
  /// "min": the metric should fall; "max": it should rise.
  std::string mode = "min";
  /// Factor of the learning rate, < 1.
  double factor = 0.1;
  /// Steps without improvement before a reduction.
  int64_t patience = 10;
  /// Improvements smaller than this do not count.
  double threshold = 1e-4;
  /// "rel": the threshold is a fraction of the best value; "abs": a difference to it.
  std::string threshold_mode = "rel";
  /// Steps after a reduction during which nothing is counted.
  int64_t cooldown = 0;
  /// Minimum learning rate.
  PerGroup min_lr = 0.0;
  /// Reductions by less than this are not made.
  double eps = 1e-8;
};

/// Reduces the learning rate when a metric stops improving. Step it with the metric: scheduler.step(loss).
class ReduceLROnPlateau : public Scheduler {
 public:
  explicit ReduceLROnPlateau(const Optimizer& optimizer, ReduceLROnPlateauOptions options = {});
  static SchedulerClass describe();
};

}  // namespace levin::optim
