#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "levin/optim/per_group.h"
#include "levin/optim/schedulers/scheduler.h"

namespace levin::optim {

struct OneCycleLROptions {
  /// Maximum learning rate; must be given.
  PerGroup max_lr = {};
  /// Steps of the whole cycle; or give epochs and steps_per_epoch.
  std::optional<int64_t> total_steps = {};
  std::optional<int64_t> epochs = {};
  std::optional<int64_t> steps_per_epoch = {};
  /// Fraction of the cycle in which the learning rate rises.
  double pct_start = 0.3;
  /// "cos" or "linear".
  std::string anneal_strategy = "cos";
  /// Moves momentum (or beta1) against the learning rate, between base_momentum and max_momentum.
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.85;
  PerGroup max_momentum = 0.95;
  /// The cycle starts at max_lr / div_factor ...
  double div_factor = 25;
  /// ... and ends at that divided by this.
  double final_div_factor = 1e4;
  /// Falls to the start as it rose, then to the end, instead of to the end at once.
  bool three_phase = false;
};

/// One rise and fall of the learning rate over the whole run (Smith's 1cycle). Step it after every optimizer step, not
/// every epoch; an Error beyond total_steps.
class OneCycleLR : public Scheduler {
 public:
  OneCycleLR(const Optimizer& optimizer, OneCycleLROptions options);
  static SchedulerClass describe();
};

}  // namespace levin::optim
