#pragma once

#include <cstdint>
#include <string>

#include "levin/optim/per_group.h"
#include "levin/optim/schedulers/scheduler.h"

namespace levin::optim {

struct SWALROptions {
  /// Where the learning rate goes, and stays; must be given.
  PerGroup swa_lr = {};
  /// Steps on the way there; 0: at once.
  int64_t anneal_epochs = 10;
  /// "cos" or "linear".
  std::string anneal_strategy = "cos";
};

/// Goes from the learning rate it finds to a constant one: for the end of a training whose weights are averaged.
///
///     optim::SWALR scheduler(opt, {.swa_lr = 0.05});
class SWALR : public Scheduler {
 public:
  SWALR(const Optimizer& optimizer, SWALROptions options);
};

}  // namespace levin::optim
