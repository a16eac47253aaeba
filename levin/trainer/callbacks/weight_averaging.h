#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "levin/optim/averaged_weights.h"
#include "levin/trainer/callback.h"

namespace levin {

struct WeightAveragingOptions {
  /// Where the average is kept. By default with the weights.
  std::optional<c10::Device> device = {};
  /// Average buffers too; otherwise they are copied. Integers are always copied.
  bool use_buffers = true;
  /// The new average, from the one before, the weight, and how many were averaged. Defaults to the plain mean.
  std::function<Tensor(const Tensor& average, const Tensor& weight, int64_t count)> avg_fn = {};
};

/// Keeps an average of the weights, updated after every optimizer step, or when an override of should_update says so.
/// Validation runs with the average, and the run ends with it. In a checkpoint the model's state is the average, for
/// whoever loads it, and "current_model_state" the weights themselves, from which a resumed run continues exactly.
///
/// Until the first update nothing is exchanged: there is no average yet.
class WeightAveraging : public Callback {
 public:
  explicit WeightAveraging(WeightAveragingOptions options = {});

  /// Whether to update after an optimizer step (its index, from 0), or after an epoch; one of the two is given.
  virtual bool should_update(std::optional<int64_t> step_idx, std::optional<int64_t> epoch_idx) const;

  void setup(TrainerContext& run, std::string_view stage) override;
  void on_fit_start(TrainerContext& run) override;
  void on_train_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                          int64_t batch_idx) override;
  void on_train_epoch_end(TrainerContext& run) override;
  void on_train_end(TrainerContext& run) override;
  void on_validation_epoch_start(TrainerContext& run) override;
  void on_validation_epoch_end(TrainerContext& run) override;
  void on_exception(TrainerContext& run, const std::exception& error) override;
  void on_save_checkpoint(TrainerContext& run, StateDict& checkpoint) override;
  void on_load_checkpoint(TrainerContext& run, StateDict& checkpoint) override;
  void on_rollback(TrainerContext& run, StateDict& checkpoint) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  /// The average; null outside of fit.
  const optim::AveragedWeights* average() const { return weights_.get(); }

 protected:
  WeightAveraging(WeightAveragingOptions options, std::optional<double> ema_decay);

 private:
  bool has_average() const { return weights_ && weights_->count() > 0; }

  WeightAveragingOptions options_;
  std::optional<double> ema_decay_;
  std::shared_ptr<optim::AveragedWeights> weights_;
  /// What a checkpoint said, until fit starts.
  StateDict loaded_average_;
  int64_t loaded_count_ = 0;
  int64_t latest_update_step_ = 0;
  int64_t latest_update_epoch_ = -1;
};

struct EMAWeightAveragingOptions {
  /// Where the average is kept. By default with the weights.
  std::optional<c10::Device> device = {};
  /// Average buffers too; otherwise they are copied. Integers are always copied.
  bool use_buffers = true;
  /// average = decay * average + (1 - decay) * weight.
  double decay = 0.999;
  /// Update after every n-th optimizer step; 0: not after steps.
  int64_t update_every_n_steps = 1;
  /// No update before this step (from 0).
  std::optional<int64_t> update_starting_at_step = {};
  /// Update after every epoch too, from this one (from 0) on.
  std::optional<int64_t> update_starting_at_epoch = {};
};

/// WeightAveraging by an exponential moving average.
///
///     levin::Trainer trainer({.callbacks = {levin::EMAWeightAveraging({.decay = 0.9999})}});
class EMAWeightAveraging : public WeightAveraging {
 public:
  explicit EMAWeightAveraging(EMAWeightAveragingOptions options = {});
  bool should_update(std::optional<int64_t> step_idx, std::optional<int64_t> epoch_idx) const override;

 private:
  EMAWeightAveragingOptions options_;
};

}  // namespace levin
