#pragma once

#include <cstdint>
#include <vector>

#include "levin/optim/schedulers/scheduler.h"

namespace levin::optim {

struct SequentialLROptions {
  /// The steps at which the next scheduler takes over: one less than there are schedulers, rising.
  std::vector<int64_t> milestones = {};
};

/// One scheduler after the other, all of one optimizer.
///
///     optim::SequentialLR scheduler(opt, {optim::LinearLR(opt, {.total_iters = 5}), optim::CosineAnnealingLR(opt,
///     {.t_max = 95})},
///                                   {.milestones = {5}});
class SequentialLR : public Scheduler {
 public:
  SequentialLR(const Optimizer& optimizer, std::vector<Scheduler> schedulers, SequentialLROptions options);
};

/// All schedulers in every step, each acting on what the one before left.
class ChainedScheduler : public Scheduler {
 public:
  explicit ChainedScheduler(std::vector<Scheduler> schedulers);
};

struct LinearWarmupCosineOptions {
  /// Steps of the whole run; must be given.
  int64_t total_steps = 0;
  /// Steps of the warm-up; 0: none.
  int64_t warmup_steps = 0;
  /// Factor of the first step of the warm-up.
  double start_factor = 0.01;
  /// The learning rate at the end.
  double eta_min = 0;
};

/// The schedule most transformers are trained with: a linear warm-up, then cosine decay to eta_min at
/// total_steps.
Scheduler linear_warmup_cosine(const Optimizer& optimizer, LinearWarmupCosineOptions options);
/// As "LinearWarmupCosine" in configs and flags.
SchedulerClass describe_linear_warmup_cosine();

}  // namespace levin::optim
