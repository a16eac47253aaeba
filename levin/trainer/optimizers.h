#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levin/optim/optimizer.h"
#include "levin/optim/schedulers/scheduler.h"
#include "levin/optim/torch/adapter.h"

namespace levin {

/// A learning rate scheduler and when the trainer steps it.
struct SchedulerConfig {
  Scheduler scheduler = {};
  /// "epoch": after the last batch of an epoch; "step": after each optimizer step.
  std::string interval = "epoch";
  /// Every n-th of those.
  int64_t frequency = 1;
  /// The metric that ReduceLROnPlateau follows.
  std::string monitor = {};
  /// A missing metric is an error; otherwise a warning, and the scheduler is not stepped.
  bool strict = true;
  /// For LearningRateMonitor. Defaults to "lr-" and the optimizer's name.
  std::string name = {};
};

struct OptimizerConfig {
  Optimizer optimizer = {};
  std::optional<SchedulerConfig> lr_scheduler = {};
};

/// What configure_optimizers returns: an optimizer, with a scheduler or not, or several of them (which needs manual
/// optimization); nothing, to train nothing.
///
///     return opt;
///     return {opt, optim::CosineAnnealingLR(opt, {.t_max = 10})};
///     return {opt, {.scheduler = optim::OneCycleLR(opt, {...}), .interval = "step"}};
///     return {generator_opt, discriminator_opt};
class Optimizers {
 public:
  Optimizers() = default;
  template <std::derived_from<Optimizer> O>
  Optimizers(const O& optimizer) : configs_{{optimizer, {}}} {}
  template <std::derived_from<Optimizer> O>
  Optimizers(const O& optimizer, SchedulerConfig scheduler) : configs_{{optimizer, std::move(scheduler)}} {}
  template <std::derived_from<Optimizer> O, std::derived_from<Scheduler> S>
  Optimizers(const O& optimizer, const S& scheduler) : configs_{{optimizer, SchedulerConfig{.scheduler = scheduler}}} {}
  template <std::derived_from<Optimizer>... O>
  requires(sizeof...(O) > 1) Optimizers(const O&... optimizers)
      : configs_{OptimizerConfig{.optimizer = optimizers}...} {}
  Optimizers(OptimizerConfig config) : configs_{std::move(config)} {}
  Optimizers(std::initializer_list<OptimizerConfig> configs) : configs_(configs) {}
  explicit Optimizers(std::vector<OptimizerConfig> configs) : configs_(std::move(configs)) {}

  const std::vector<OptimizerConfig>& configs() const { return configs_; }
  bool empty() const { return configs_.empty(); }

 private:
  std::vector<OptimizerConfig> configs_;
};

/// A TrainModule that keeps an optimizer chosen by name (`--optimizer AdamW`) from applying its weight_decay to some
/// parameters.
struct ChoosesDecay {
  virtual ~ChoosesDecay() = default;
  virtual bool decays(const std::string& parameter) const = 0;
};

}  // namespace levin
