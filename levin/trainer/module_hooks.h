#pragma once

#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include "levin/core/state_dict.h"
#include "levin/optim/optimizer.h"

namespace levin {

/// Hyperparameters: kept in checkpoints and given to the loggers.
struct Hyperparameters {
  StateDict hparams;
  void save_hyperparameters(StateDict values) { hparams = std::move(values); }
};

/// TrainModule hooks of a run and of training. Each is called after those of the callbacks.
class FitHooks {
 public:
  virtual ~FitHooks() = default;

  /// Downloads and the like: local rank 0 alone.
  virtual void prepare_data() {}
  /// `stage`: "fit", "validate", "test" or "predict". Every rank.
  virtual void setup(std::string_view /*stage*/) {}
  virtual void teardown(std::string_view /*stage*/) {}
  virtual void on_fit_start() {}
  virtual void on_fit_end() {}
  virtual void on_train_start() {}
  virtual void on_train_end() {}
  virtual void on_train_epoch_start() {}
  virtual void on_train_epoch_end() {}
  virtual void on_before_zero_grad(Optimizer&) {}
  virtual void on_before_backward(const at::Tensor& /*loss*/) {}
  virtual void on_after_backward() {}
  virtual void on_before_optimizer_step(Optimizer&) {}
  /// The checkpoint about to be written, and the one that was read: entries may be added and changed.
  virtual void on_save_checkpoint(StateDict& /*checkpoint*/) {}
  virtual void on_load_checkpoint(StateDict& /*checkpoint*/) {}
};

/// TrainModule hooks of validation, test and prediction.
class EvaluationHooks {
 public:
  virtual ~EvaluationHooks() = default;

  virtual void on_validation_start() {}
  virtual void on_validation_end() {}
  virtual void on_validation_epoch_start() {}
  virtual void on_validation_epoch_end() {}
  virtual void on_test_start() {}
  virtual void on_test_end() {}
  virtual void on_test_epoch_start() {}
  virtual void on_test_epoch_end() {}
  virtual void on_predict_start() {}
  virtual void on_predict_end() {}
  virtual void on_predict_epoch_start() {}
  virtual void on_predict_epoch_end() {}
};

}  // namespace levin
