#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "levin/trainer/callback.h"

namespace levin {

struct EarlyStoppingOptions {
  /// The metric to follow.
  std::string monitor = {};
  /// A change that is not larger is no improvement.
  double min_delta = 0;
  /// This many checks in a row without an improvement end the run.
  int64_t patience = 3;
  /// Say when the metric improved.
  bool verbose = false;
  /// "min" or "max" of the metric is best.
  std::string mode = "min";
  /// A missing metric is an Error; otherwise it is not looked at.
  bool strict = true;
  /// A value that is nan or infinite ends the run.
  bool check_finite = true;
  /// A value better than this ends the run.
  std::optional<double> stopping_threshold = {};
  /// A value worse than this ends the run.
  std::optional<double> divergence_threshold = {};
  /// Look at the end of the training epoch, or after validation. By default as fits: after validation when it comes
  /// more or less often than once an epoch.
  std::optional<bool> check_on_train_epoch_end = {};
  /// Only rank 0 speaks of improvements; with values that were not reduced, each rank has its own.
  bool log_rank_zero_only = false;
};

enum class StoppingReason {
  kNotStopped,
  kStoppingThreshold,
  kDivergenceThreshold,
  kPatienceExhausted,
  kNonFiniteMetric,
};

/// Ends the run when a metric no longer improves.
///
///     levin::Trainer trainer({.callbacks = {levin::EarlyStopping({.monitor = "val_loss", .patience = 5})}});
///
/// In this order: a value that is not finite, the stopping threshold, the divergence threshold, an improvement, the
/// patience. Any rank stops all of them. A run that resumes from a checkpoint keeps the best value and the checks it
/// has waited, and takes the patience of its options.
class EarlyStopping : public Callback {
 public:
  explicit EarlyStopping(EarlyStoppingOptions options);

  StoppingReason stopping_reason() const { return reason_; }
  /// The reason in words; empty while the run was not stopped.
  const std::string& stopping_reason_message() const { return message_; }
  /// The epoch in which it ended the run; 0 when it did not.
  int64_t stopped_epoch() const { return stopped_epoch_; }
  int64_t wait_count() const { return wait_count_; }
  double best_score() const { return best_; }

  CallbackOrder order() const override { return CallbackOrder::kMonitor; }
  std::string state_key() const override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void setup(TrainerContext& run, std::string_view stage) override;
  void on_train_epoch_end(TrainerContext& run) override;
  void on_validation_end(TrainerContext& run) override;

 private:
  bool checks_at_train_epoch_end(const TrainerContext& run) const;
  void check(TrainerContext& run);
  /// Says whether to stop; notes an improvement, or one more check without.
  StoppingReason judge(double current, std::string& message);
  bool is_better(double a, double b) const { return lower_is_better_ ? a < b : a > b; }
  void start_over();

  EarlyStoppingOptions options_;
  bool lower_is_better_;
  int64_t wait_count_ = 0;
  int64_t stopped_epoch_ = 0;
  double best_ = 0;
  StoppingReason reason_ = StoppingReason::kNotStopped;
  std::string message_;
};

}  // namespace levin
