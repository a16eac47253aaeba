#pragma once

#include <cstdint>

#include "levin/optim/schedulers/scheduler.h"

namespace levin::optim {

struct CosineAnnealingLROptions {
  /// Steps from the initial learning rate down to eta_min; must be given.
  int64_t t_max = 0;
  /// Minimum learning rate.
  double eta_min = 0;
};
/// Half a cosine down to eta_min in t_max steps, and up again if the run continues.
class CosineAnnealingLR : public Scheduler {
 public:
  CosineAnnealingLR(const Optimizer& optimizer, CosineAnnealingLROptions options);
  static SchedulerClass describe();
};

struct CosineAnnealingWarmRestartsOptions {
  /// Steps of the first cycle; must be given.
  int64_t t_0 = 0;
  /// Every cycle is this many times as long as the one before.
  int64_t t_mult = 1;
  /// Minimum learning rate.
  double eta_min = 0;
};
/// Half a cosine down to eta_min, then back to the start in one step (SGDR).
class CosineAnnealingWarmRestarts : public Scheduler {
 public:
  CosineAnnealingWarmRestarts(const Optimizer& optimizer, CosineAnnealingWarmRestartsOptions options);
  static SchedulerClass describe();
};

}  // namespace levin::optim
