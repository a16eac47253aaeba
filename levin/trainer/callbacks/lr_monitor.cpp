#include "levin/trainer/callbacks/lr_monitor.h"

#include <algorithm>

#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/trainer/context.h"

namespace levin {
namespace {

// A scheduler may hold the optimizer that the run's own stands in for; the numbers are at one place then.
bool same_optimizer(const Optimizer& a, const Optimizer& b) {
  return a.impl() == b.impl() || a.impl()->find_hyper(0, "lr") == b.impl()->find_hyper(0, "lr");
}

double momentum_of(const Optimizer& optimizer, size_t group) {
  for (const char* name : {"momentum", "beta1"})
    if (const double* value = optimizer.impl()->find_hyper(group, name)) return *value;
  return 0;
}

}  // namespace

LearningRateMonitor::LearningRateMonitor(LearningRateMonitorOptions options) : options_(std::move(options)) {
  static const std::vector<std::string> known{"step", "epoch"};
  if (!options_.logging_interval.empty() && std::ranges::find(known, options_.logging_interval) == known.end())
    fail_unknown("LearningRateMonitor", "logging_interval", options_.logging_interval, known);
}

void LearningRateMonitor::on_train_start(TrainerContext& run) {
  LEVIN_CHECK(!run.loggers().empty() || run.plan().fast_dev_run > 0,
              "[LearningRateMonitor] there is no logger to write to; give the Trainer one, or leave the callback out");
  lrs_.clear();
  if (!options_.log_momentum) return;
  for (const auto& optimizer : run.optimizers())
    if (!optimizer.impl()->find_hyper(0, "momentum") && !optimizer.impl()->find_hyper(0, "beta1"))
      log_warning("LearningRateMonitor: " + optimizer.name() + " has no momentum; 0 is logged for it");
}

void LearningRateMonitor::on_train_epoch_start(TrainerContext& run) {
  if (options_.logging_interval != "step") log(run, options_.logging_interval.empty() ? "epoch" : "");
}

void LearningRateMonitor::on_train_batch_start(TrainerContext& run, const AnyBatch&, int64_t) {
  if (options_.logging_interval != "epoch" && run.row_is_due())
    log(run, options_.logging_interval.empty() ? "step" : "");
}

// `interval`: only schedulers that step so often; empty: all. Optimizers without a scheduler are always there.
void LearningRateMonitor::log(TrainerContext& run, std::string_view interval) {
  Metrics metrics;
  std::vector<Optimizer> seen;
  std::map<std::string, int> of_class;
  const auto numbered = [&](const Optimizer& optimizer) {
    const int count = ++of_class[optimizer.name()];
    return "lr-" + optimizer.name() + (count > 1 ? "-" + std::to_string(count - 1) : "");
  };
  for (const auto& config : run.schedulers()) {
    const auto& optimizer = config.scheduler.optimizer();
    seen.push_back(optimizer);
    const auto name = config.name.empty() ? numbered(optimizer) : config.name;
    if (interval.empty() || interval == config.interval) read(optimizer, name, metrics);
  }
  for (const auto& optimizer : run.optimizers())
    if (std::ranges::none_of(seen, [&](const auto& other) { return same_optimizer(other, optimizer); }))
      read(optimizer, numbered(optimizer), metrics);
  if (!metrics.empty()) run.log_row(metrics);
}

void LearningRateMonitor::read(const Optimizer& optimizer, const std::string& name, Metrics& out) {
  for (size_t group = 0; group < optimizer.num_groups(); ++group) {
    const auto key = optimizer.num_groups() > 1 ? name + "/pg" + std::to_string(group + 1) : name;
    out.emplace_back(key, optimizer.lr(group));
    lrs_[key].push_back(optimizer.lr(group));
    if (options_.log_momentum) out.emplace_back(key + "-momentum", momentum_of(optimizer, group));
    const double* decay = optimizer.impl()->find_hyper(group, "weight_decay");
    if (options_.log_weight_decay && decay) out.emplace_back(key + "-weight_decay", *decay);
  }
}

}  // namespace levin
