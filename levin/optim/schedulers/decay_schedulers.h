#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "levin/optim/schedulers/scheduler.h"

namespace levin::optim {

struct StepLROptions {
  /// Steps between two decays; must be given.
  int64_t step_size = 0;
  /// Factor of the learning rate.
  double gamma = 0.1;
};
/// Decays by gamma every step_size steps.
class StepLR : public Scheduler {
 public:
  StepLR(const Optimizer& optimizer, StepLROptions options);
  static SchedulerClass describe();
};

struct MultiStepLROptions {
  /// Steps at which to decay; one that is named twice decays twice.
  std::vector<int64_t> milestones = {};
  /// Factor of the learning rate.
  double gamma = 0.1;
};
/// Decays by gamma at each milestone.
class MultiStepLR : public Scheduler {
 public:
  MultiStepLR(const Optimizer& optimizer, MultiStepLROptions options);
  static SchedulerClass describe();
};

struct ConstantLROptions {
  /// Factor of the learning rate, in (0, 1].
  double factor = 1.0 / 3;
  /// Step from which the full learning rate is used.
  int64_t total_iters = 5;
};
/// A smaller learning rate for the first steps.
class ConstantLR : public Scheduler {
 public:
  explicit ConstantLR(const Optimizer& optimizer, ConstantLROptions options = {});
  static SchedulerClass describe();
};

struct LinearLROptions {
  /// Factor of the first step, in (0, 1].
  double start_factor = 1.0 / 3;
  /// Factor from step total_iters on, in [0, 1].
  double end_factor = 1.0;
  /// Steps from start_factor to end_factor.
  int64_t total_iters = 5;
};
/// A straight line between two factors: the usual warm-up.
class LinearLR : public Scheduler {
 public:
  explicit LinearLR(const Optimizer& optimizer, LinearLROptions options = {});
  static SchedulerClass describe();
};

struct ExponentialLROptions {
  /// Factor of the learning rate in each step; must be given.
  double gamma = std::numeric_limits<double>::quiet_NaN();
};
/// Decays by gamma every step.
class ExponentialLR : public Scheduler {
 public:
  ExponentialLR(const Optimizer& optimizer, ExponentialLROptions options);
  static SchedulerClass describe();
};

struct PolynomialLROptions {
  /// Step at which zero is reached.
  int64_t total_iters = 5;
  double power = 1.0;
};
/// Decays to zero as (1 - step / total_iters) ^ power.
class PolynomialLR : public Scheduler {
 public:
  explicit PolynomialLR(const Optimizer& optimizer, PolynomialLROptions options = {});
  static SchedulerClass describe();
};

/// The initial learning rate times a function of the step, one for all groups or one for each. The functions are not
/// saved.
///
///     optim::LambdaLR scheduler(opt, [](int64_t step) { return std::pow(0.95, step); });
class LambdaLR : public Scheduler {
 public:
  using Factor = std::function<double(int64_t step)>;
  LambdaLR(const Optimizer& optimizer, Factor factor);
  LambdaLR(const Optimizer& optimizer, std::vector<Factor> factors);
};

}  // namespace levin::optim
