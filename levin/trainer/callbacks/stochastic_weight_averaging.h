#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "levin/optim/averaged_weights.h"
#include "levin/optim/per_group.h"
#include "levin/optim/schedulers/scheduler.h"
#include "levin/trainer/callback.h"

namespace levin {

struct StochasticWeightAveragingOptions {
  /// The learning rate while weights are averaged: one, or one for each group of parameters; must be given.
  optim::PerGroup swa_lrs = {};
  /// The epoch it starts with, counted from 1 (`5`), or a fraction of max_epochs (`0.8`).
  std::variant<int64_t, double> swa_epoch_start = 0.8;
  /// Epochs on the way from the learning rate that is found to swa_lrs.
  int64_t annealing_epochs = 10;
  /// "cos" or "linear".
  std::string annealing_strategy = "cos";
  /// The new average, from the one before, the weight, and how many were averaged. Defaults to the plain mean.
  std::function<Tensor(const Tensor& average, const Tensor& weight, int64_t count)> avg_fn = {};
  /// Where the average is kept; std::nullopt: beside the weights.
  std::optional<c10::Device> device = c10::Device(c10::kCPU);
};

/// Stochastic Weight Averaging: from an epoch on the learning rate goes to a constant (SWALR takes the place of the
/// scheduler), the weights are averaged at the start of every epoch, and the run ends with the average. A module with
/// batch norm gets one more epoch, forward only, in which its statistics are made again. One optimizer, at most one
/// scheduler.
///
///     levin::Trainer trainer({.callbacks = {levin::StochasticWeightAveraging({.swa_lrs = 0.01})}, .max_epochs = 50});
class StochasticWeightAveraging : public Callback {
 public:
  explicit StochasticWeightAveraging(StochasticWeightAveragingOptions options);

  void on_fit_start(TrainerContext& run) override;
  void on_train_epoch_start(TrainerContext& run) override;
  void on_train_epoch_end(TrainerContext& run) override;
  void on_train_end(TrainerContext& run) override;
  void teardown(TrainerContext& run, std::string_view stage) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override { loaded_ = state; }

  /// Weights that are in the average.
  int64_t n_averaged() const { return weights_ ? weights_->count() : 0; }

 private:
  void restore(TrainerContext& run);
  Scheduler install_scheduler(TrainerContext& run);
  void begin_refresh(TrainerContext& run);
  void end_refresh(TrainerContext& run);

  StochasticWeightAveragingOptions options_;
  std::shared_ptr<optim::AveragedWeights> weights_;
  Scheduler scheduler_;
  std::optional<StateDict> loaded_;
  /// Of epochs, counted from 0; the last one is without end when max_epochs is.
  int64_t first_epoch_ = 0;
  int64_t last_epoch_ = 0;
  int64_t latest_update_epoch_ = -1;
  /// As the user gave it, while the run has one more.
  std::optional<int64_t> max_epochs_;
  bool has_batch_norm_ = false;
  bool refreshing_ = false;
  /// The run came to its planned end with the average.
  bool finished_ = false;
  std::vector<std::pair<std::optional<double>*, std::optional<double>>> momenta_;
};

}  // namespace levin
