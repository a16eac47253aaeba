#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string_view>
#include <utility>

#include "levin/trainer/callback.h"

namespace levin {

/// Functions by the names of Callback's hooks; those that are not set are not called.
struct LambdaHooks {
  std::function<void(TrainerContext&, std::string_view)> setup = {};
  std::function<void(TrainerContext&, std::string_view)> teardown = {};
  std::function<void(TrainerContext&)> on_fit_start = {};
  std::function<void(TrainerContext&)> on_fit_end = {};
  std::function<void(TrainerContext&)> on_sanity_check_start = {};
  std::function<void(TrainerContext&)> on_sanity_check_end = {};
  std::function<void(TrainerContext&)> on_train_start = {};
  std::function<void(TrainerContext&)> on_train_end = {};
  std::function<void(TrainerContext&)> on_train_epoch_start = {};
  std::function<void(TrainerContext&)> on_train_epoch_end = {};
  std::function<void(TrainerContext&, const AnyBatch&, int64_t)> on_train_batch_start = {};
  std::function<void(TrainerContext&, const StepOutput&, const AnyBatch&, int64_t)> on_train_batch_end = {};
  std::function<void(TrainerContext&, Optimizer&)> on_before_zero_grad = {};
  std::function<void(TrainerContext&, const Tensor&)> on_before_backward = {};
  std::function<void(TrainerContext&)> on_after_backward = {};
  std::function<void(TrainerContext&, Optimizer&)> on_before_optimizer_step = {};
  std::function<void(TrainerContext&)> on_validation_start = {};
  std::function<void(TrainerContext&)> on_validation_end = {};
  std::function<void(TrainerContext&)> on_validation_epoch_start = {};
  std::function<void(TrainerContext&)> on_validation_epoch_end = {};
  std::function<void(TrainerContext&, const AnyBatch&, const StepInfo&)> on_validation_batch_start = {};
  std::function<void(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo&)> on_validation_batch_end =
      {};
  std::function<void(TrainerContext&)> on_test_start = {};
  std::function<void(TrainerContext&)> on_test_end = {};
  std::function<void(TrainerContext&)> on_test_epoch_start = {};
  std::function<void(TrainerContext&)> on_test_epoch_end = {};
  std::function<void(TrainerContext&, const AnyBatch&, const StepInfo&)> on_test_batch_start = {};
  std::function<void(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo&)> on_test_batch_end = {};
  std::function<void(TrainerContext&)> on_predict_start = {};
  std::function<void(TrainerContext&)> on_predict_end = {};
  std::function<void(TrainerContext&)> on_predict_epoch_start = {};
  std::function<void(TrainerContext&)> on_predict_epoch_end = {};
  std::function<void(TrainerContext&, const AnyBatch&, const StepInfo&)> on_predict_batch_start = {};
  std::function<void(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo&)> on_predict_batch_end = {};
  std::function<void(TrainerContext&, StateDict&)> on_save_checkpoint = {};
  std::function<void(TrainerContext&, StateDict&)> on_load_checkpoint = {};
  std::function<void(TrainerContext&, const std::exception&)> on_exception = {};
};

/// A callback of functions, for when a class is too much:
///
///     levin::LambdaCallback({.on_train_epoch_end = [](levin::TrainerContext& run) { run.print("done"); }})
class LambdaCallback : public Callback {
 public:
  explicit LambdaCallback(LambdaHooks hooks) : hooks_(std::move(hooks)) {}

  void setup(TrainerContext& run, std::string_view stage) override {
    if (hooks_.setup) hooks_.setup(run, stage);
  }
  void teardown(TrainerContext& run, std::string_view stage) override {
    if (hooks_.teardown) hooks_.teardown(run, stage);
  }
  void on_fit_start(TrainerContext& run) override {
    if (hooks_.on_fit_start) hooks_.on_fit_start(run);
  }
  void on_fit_end(TrainerContext& run) override {
    if (hooks_.on_fit_end) hooks_.on_fit_end(run);
  }
  void on_sanity_check_start(TrainerContext& run) override {
    if (hooks_.on_sanity_check_start) hooks_.on_sanity_check_start(run);
  }
  void on_sanity_check_end(TrainerContext& run) override {
    if (hooks_.on_sanity_check_end) hooks_.on_sanity_check_end(run);
  }
  void on_train_start(TrainerContext& run) override {
    if (hooks_.on_train_start) hooks_.on_train_start(run);
  }
  void on_train_end(TrainerContext& run) override {
    if (hooks_.on_train_end) hooks_.on_train_end(run);
  }
  void on_train_epoch_start(TrainerContext& run) override {
    if (hooks_.on_train_epoch_start) hooks_.on_train_epoch_start(run);
  }
  void on_train_epoch_end(TrainerContext& run) override {
    if (hooks_.on_train_epoch_end) hooks_.on_train_epoch_end(run);
  }
  void on_train_batch_start(TrainerContext& run, const AnyBatch& batch, int64_t batch_idx) override {
    if (hooks_.on_train_batch_start) hooks_.on_train_batch_start(run, batch, batch_idx);
  }
  void on_train_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                          int64_t batch_idx) override {
    if (hooks_.on_train_batch_end) hooks_.on_train_batch_end(run, output, batch, batch_idx);
  }
  void on_before_zero_grad(TrainerContext& run, Optimizer& optimizer) override {
    if (hooks_.on_before_zero_grad) hooks_.on_before_zero_grad(run, optimizer);
  }
  void on_before_backward(TrainerContext& run, const Tensor& loss) override {
    if (hooks_.on_before_backward) hooks_.on_before_backward(run, loss);
  }
  void on_after_backward(TrainerContext& run) override {
    if (hooks_.on_after_backward) hooks_.on_after_backward(run);
  }
  void on_before_optimizer_step(TrainerContext& run, Optimizer& optimizer) override {
    if (hooks_.on_before_optimizer_step) hooks_.on_before_optimizer_step(run, optimizer);
  }
  void on_validation_start(TrainerContext& run) override {
    if (hooks_.on_validation_start) hooks_.on_validation_start(run);
  }
  void on_validation_end(TrainerContext& run) override {
    if (hooks_.on_validation_end) hooks_.on_validation_end(run);
  }
  void on_validation_epoch_start(TrainerContext& run) override {
    if (hooks_.on_validation_epoch_start) hooks_.on_validation_epoch_start(run);
  }
  void on_validation_epoch_end(TrainerContext& run) override {
    if (hooks_.on_validation_epoch_end) hooks_.on_validation_epoch_end(run);
  }
  void on_validation_batch_start(TrainerContext& run, const AnyBatch& batch, const StepInfo& at) override {
    if (hooks_.on_validation_batch_start) hooks_.on_validation_batch_start(run, batch, at);
  }
  void on_validation_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                               const StepInfo& at) override {
    if (hooks_.on_validation_batch_end) hooks_.on_validation_batch_end(run, output, batch, at);
  }
  void on_test_start(TrainerContext& run) override {
    if (hooks_.on_test_start) hooks_.on_test_start(run);
  }
  void on_test_end(TrainerContext& run) override {
    if (hooks_.on_test_end) hooks_.on_test_end(run);
  }
  void on_test_epoch_start(TrainerContext& run) override {
    if (hooks_.on_test_epoch_start) hooks_.on_test_epoch_start(run);
  }
  void on_test_epoch_end(TrainerContext& run) override {
    if (hooks_.on_test_epoch_end) hooks_.on_test_epoch_end(run);
  }
  void on_test_batch_start(TrainerContext& run, const AnyBatch& batch, const StepInfo& at) override {
    if (hooks_.on_test_batch_start) hooks_.on_test_batch_start(run, batch, at);
  }
  void on_test_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                         const StepInfo& at) override {
    if (hooks_.on_test_batch_end) hooks_.on_test_batch_end(run, output, batch, at);
  }
  void on_predict_start(TrainerContext& run) override {
    if (hooks_.on_predict_start) hooks_.on_predict_start(run);
  }
  void on_predict_end(TrainerContext& run) override {
    if (hooks_.on_predict_end) hooks_.on_predict_end(run);
  }
  void on_predict_epoch_start(TrainerContext& run) override {
    if (hooks_.on_predict_epoch_start) hooks_.on_predict_epoch_start(run);
  }
  void on_predict_epoch_end(TrainerContext& run) override {
    if (hooks_.on_predict_epoch_end) hooks_.on_predict_epoch_end(run);
  }
  void on_predict_batch_start(TrainerContext& run, const AnyBatch& batch, const StepInfo& at) override {
    if (hooks_.on_predict_batch_start) hooks_.on_predict_batch_start(run, batch, at);
  }
  void on_predict_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                            const StepInfo& at) override {
    if (hooks_.on_predict_batch_end) hooks_.on_predict_batch_end(run, output, batch, at);
  }
  void on_save_checkpoint(TrainerContext& run, StateDict& checkpoint) override {
    if (hooks_.on_save_checkpoint) hooks_.on_save_checkpoint(run, checkpoint);
  }
  void on_load_checkpoint(TrainerContext& run, StateDict& checkpoint) override {
    if (hooks_.on_load_checkpoint) hooks_.on_load_checkpoint(run, checkpoint);
  }
  void on_exception(TrainerContext& run, const std::exception& error) override {
    if (hooks_.on_exception) hooks_.on_exception(run, error);
  }

 private:
  LambdaHooks hooks_;
};

}  // namespace levin
