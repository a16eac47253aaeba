#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/loggers/logger.h"
#include "levin/trainer/callback.h"

namespace levin {

struct LearningRateMonitorOptions {
  /// "step": with every row of step metrics; "epoch": at the start of every epoch; empty: each scheduler as often as it
  /// steps.
  std::string logging_interval = {};
  /// "-momentum" too: momentum, or beta1; 0 for an optimizer without.
  bool log_momentum = false;
  /// "-weight_decay" too.
  bool log_weight_decay = false;
};

/// Gives the learning rates to the loggers: "lr-AdamW", "lr-AdamW/pg2" for the second group of parameters, "lr-AdamW-1"
/// for a second optimizer of that class, or what SchedulerConfig::name says. Needs a logger.
class LearningRateMonitor : public Callback {
 public:
  explicit LearningRateMonitor(LearningRateMonitorOptions options = {});

  void on_train_start(TrainerContext& run) override;
  void on_train_epoch_start(TrainerContext& run) override;
  void on_train_batch_start(TrainerContext& run, const AnyBatch& batch, int64_t batch_idx) override;

  /// What was logged so far in this run, by key.
  const std::map<std::string, std::vector<double>>& lrs() const { return lrs_; }

 private:
  void log(TrainerContext& run, std::string_view interval);
  void read(const Optimizer& optimizer, const std::string& name, Metrics& out);

  LearningRateMonitorOptions options_;
  std::map<std::string, std::vector<double>> lrs_;
};

}  // namespace levin
