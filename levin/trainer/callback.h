#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "levin/core/state_dict.h"
#include "levin/fabric/options.h"
#include "levin/optim/optimizer.h"
#include "levin/trainer/step.h"

namespace levin {

class TrainerContext;

/// When a callback's turn is. Tuners come first and checkpoints last; at the end of an epoch monitors and checkpoints
/// come after the module, so that they see what it logged there.
enum class CallbackOrder { kTuner, kOrdinary, kMonitor, kCheckpoint };

/// Something that happens along the way: derive from it and override what you need. What is not overridden costs
/// nothing.
///
///     struct PrintLoss : levin::Callback {
///       void on_train_epoch_end(levin::TrainerContext& run) override {
///         run.print("epoch ", run.current_epoch(), ": ", run.metric("train_loss").value_or(0));
///       }
///     };
///     levin::Trainer trainer({.callbacks = {PrintLoss{}}});
class Callback : public CallbackBase {
 public:
  virtual CallbackOrder order() const { return CallbackOrder::kOrdinary; }
  /// Distinguishes the states of callbacks in a checkpoint. Two callbacks with a state and the same key are refused.
  virtual std::string state_key() const;
  /// What a checkpoint keeps of it; empty: nothing.
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}

  /// `stage`: "fit", "validate", "test" or "predict".
  virtual void setup(TrainerContext&, std::string_view /*stage*/) {}
  virtual void teardown(TrainerContext&, std::string_view /*stage*/) {}
  virtual void on_fit_start(TrainerContext&) {}
  virtual void on_fit_end(TrainerContext&) {}
  virtual void on_sanity_check_start(TrainerContext&) {}
  virtual void on_sanity_check_end(TrainerContext&) {}
  virtual void on_train_start(TrainerContext&) {}
  virtual void on_train_end(TrainerContext&) {}
  virtual void on_train_epoch_start(TrainerContext&) {}
  virtual void on_train_epoch_end(TrainerContext&) {}
  virtual void on_train_batch_start(TrainerContext&, const AnyBatch&, int64_t /*batch_idx*/) {}
  /// The output is let go of after this hook; what is kept of it should be detached, or its graph stays too.
  virtual void on_train_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, int64_t /*batch_idx*/) {}
  virtual void on_before_zero_grad(TrainerContext&, Optimizer&) {}
  virtual void on_before_backward(TrainerContext&, const Tensor& /*loss*/) {}
  virtual void on_after_backward(TrainerContext&) {}
  virtual void on_before_optimizer_step(TrainerContext&, Optimizer&) {}
  virtual void on_validation_start(TrainerContext&) {}
  virtual void on_validation_end(TrainerContext&) {}
  virtual void on_validation_epoch_start(TrainerContext&) {}
  virtual void on_validation_epoch_end(TrainerContext&) {}
  virtual void on_validation_batch_start(TrainerContext&, const AnyBatch&, const StepInfo&) {}
  virtual void on_validation_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo&) {}
  virtual void on_test_start(TrainerContext&) {}
  virtual void on_test_end(TrainerContext&) {}
  virtual void on_test_epoch_start(TrainerContext&) {}
  virtual void on_test_epoch_end(TrainerContext&) {}
  virtual void on_test_batch_start(TrainerContext&, const AnyBatch&, const StepInfo&) {}
  virtual void on_test_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo&) {}
  virtual void on_predict_start(TrainerContext&) {}
  virtual void on_predict_end(TrainerContext&) {}
  virtual void on_predict_epoch_start(TrainerContext&) {}
  virtual void on_predict_epoch_end(TrainerContext&) {}
  virtual void on_predict_batch_start(TrainerContext&, const AnyBatch&, const StepInfo&) {}
  virtual void on_predict_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo&) {}
  /// The checkpoint about to be written, and the one that was read: entries may be added and changed.
  virtual void on_save_checkpoint(TrainerContext&, StateDict& /*checkpoint*/) {}
  virtual void on_load_checkpoint(TrainerContext&, StateDict& /*checkpoint*/) {}
  /// An exception, Ctrl-C or a signal ends the run.
  virtual void on_exception(TrainerContext&, const std::exception&) {}
};

/// One for each hook above, in that order.
enum class Hook {
  kSetup,
  kTeardown,
  kFitStart,
  kFitEnd,
  kSanityCheckStart,
  kSanityCheckEnd,
  kTrainStart,
  kTrainEnd,
  kTrainEpochStart,
  kTrainEpochEnd,
  kTrainBatchStart,
  kTrainBatchEnd,
  kBeforeZeroGrad,
  kBeforeBackward,
  kAfterBackward,
  kBeforeOptimizerStep,
  kValidationStart,
  kValidationEnd,
  kValidationEpochStart,
  kValidationEpochEnd,
  kValidationBatchStart,
  kValidationBatchEnd,
  kTestStart,
  kTestEnd,
  kTestEpochStart,
  kTestEpochEnd,
  kTestBatchStart,
  kTestBatchEnd,
  kPredictStart,
  kPredictEnd,
  kPredictEpochStart,
  kPredictEpochEnd,
  kPredictBatchStart,
  kPredictBatchEnd,
  kSaveCheckpoint,
  kLoadCheckpoint,
  kException,
  kCount
};

namespace detail {

/// Which hooks `T` overrides: known where its type is, which is where it is handed over.
template <class T>
constexpr uint64_t overridden_hooks() {
  uint64_t mask = 0;
  const auto mark = [&](Hook hook, bool same) {
    if (!same) mask |= uint64_t{1} << static_cast<int>(hook);
  };
  // clang-format off
  mark(Hook::kSetup, std::is_same_v<decltype(&T::setup), decltype(&Callback::setup)>);
  mark(Hook::kTeardown, std::is_same_v<decltype(&T::teardown), decltype(&Callback::teardown)>);
  mark(Hook::kFitStart, std::is_same_v<decltype(&T::on_fit_start), decltype(&Callback::on_fit_start)>);
  mark(Hook::kFitEnd, std::is_same_v<decltype(&T::on_fit_end), decltype(&Callback::on_fit_end)>);
  mark(Hook::kSanityCheckStart, std::is_same_v<decltype(&T::on_sanity_check_start), decltype(&Callback::on_sanity_check_start)>);
  mark(Hook::kSanityCheckEnd, std::is_same_v<decltype(&T::on_sanity_check_end), decltype(&Callback::on_sanity_check_end)>);
  mark(Hook::kTrainStart, std::is_same_v<decltype(&T::on_train_start), decltype(&Callback::on_train_start)>);
  mark(Hook::kTrainEnd, std::is_same_v<decltype(&T::on_train_end), decltype(&Callback::on_train_end)>);
  mark(Hook::kTrainEpochStart, std::is_same_v<decltype(&T::on_train_epoch_start), decltype(&Callback::on_train_epoch_start)>);
  mark(Hook::kTrainEpochEnd, std::is_same_v<decltype(&T::on_train_epoch_end), decltype(&Callback::on_train_epoch_end)>);
  mark(Hook::kTrainBatchStart, std::is_same_v<decltype(&T::on_train_batch_start), decltype(&Callback::on_train_batch_start)>);
  mark(Hook::kTrainBatchEnd, std::is_same_v<decltype(&T::on_train_batch_end), decltype(&Callback::on_train_batch_end)>);
  mark(Hook::kBeforeZeroGrad, std::is_same_v<decltype(&T::on_before_zero_grad), decltype(&Callback::on_before_zero_grad)>);
  mark(Hook::kBeforeBackward, std::is_same_v<decltype(&T::on_before_backward), decltype(&Callback::on_before_backward)>);
  mark(Hook::kAfterBackward, std::is_same_v<decltype(&T::on_after_backward), decltype(&Callback::on_after_backward)>);
  mark(Hook::kBeforeOptimizerStep, std::is_same_v<decltype(&T::on_before_optimizer_step), decltype(&Callback::on_before_optimizer_step)>);
  mark(Hook::kValidationStart, std::is_same_v<decltype(&T::on_validation_start), decltype(&Callback::on_validation_start)>);
  mark(Hook::kValidationEnd, std::is_same_v<decltype(&T::on_validation_end), decltype(&Callback::on_validation_end)>);
  mark(Hook::kValidationEpochStart, std::is_same_v<decltype(&T::on_validation_epoch_start), decltype(&Callback::on_validation_epoch_start)>);
  mark(Hook::kValidationEpochEnd, std::is_same_v<decltype(&T::on_validation_epoch_end), decltype(&Callback::on_validation_epoch_end)>);
  mark(Hook::kValidationBatchStart, std::is_same_v<decltype(&T::on_validation_batch_start), decltype(&Callback::on_validation_batch_start)>);
  mark(Hook::kValidationBatchEnd, std::is_same_v<decltype(&T::on_validation_batch_end), decltype(&Callback::on_validation_batch_end)>);
  mark(Hook::kTestStart, std::is_same_v<decltype(&T::on_test_start), decltype(&Callback::on_test_start)>);
  mark(Hook::kTestEnd, std::is_same_v<decltype(&T::on_test_end), decltype(&Callback::on_test_end)>);
  mark(Hook::kTestEpochStart, std::is_same_v<decltype(&T::on_test_epoch_start), decltype(&Callback::on_test_epoch_start)>);
  mark(Hook::kTestEpochEnd, std::is_same_v<decltype(&T::on_test_epoch_end), decltype(&Callback::on_test_epoch_end)>);
  mark(Hook::kTestBatchStart, std::is_same_v<decltype(&T::on_test_batch_start), decltype(&Callback::on_test_batch_start)>);
  mark(Hook::kTestBatchEnd, std::is_same_v<decltype(&T::on_test_batch_end), decltype(&Callback::on_test_batch_end)>);
  mark(Hook::kPredictStart, std::is_same_v<decltype(&T::on_predict_start), decltype(&Callback::on_predict_start)>);
  mark(Hook::kPredictEnd, std::is_same_v<decltype(&T::on_predict_end), decltype(&Callback::on_predict_end)>);
  mark(Hook::kPredictEpochStart, std::is_same_v<decltype(&T::on_predict_epoch_start), decltype(&Callback::on_predict_epoch_start)>);
  mark(Hook::kPredictEpochEnd, std::is_same_v<decltype(&T::on_predict_epoch_end), decltype(&Callback::on_predict_epoch_end)>);
  mark(Hook::kPredictBatchStart, std::is_same_v<decltype(&T::on_predict_batch_start), decltype(&Callback::on_predict_batch_start)>);
  mark(Hook::kPredictBatchEnd, std::is_same_v<decltype(&T::on_predict_batch_end), decltype(&Callback::on_predict_batch_end)>);
  mark(Hook::kSaveCheckpoint, std::is_same_v<decltype(&T::on_save_checkpoint), decltype(&Callback::on_save_checkpoint)>);
  mark(Hook::kLoadCheckpoint, std::is_same_v<decltype(&T::on_load_checkpoint), decltype(&Callback::on_load_checkpoint)>);
  mark(Hook::kException, std::is_same_v<decltype(&T::on_exception), decltype(&Callback::on_exception)>);
  // clang-format on
  return mask;
}

}  // namespace detail

/// A callback as `callbacks = {...}` takes it: a value, which the trainer keeps, or a shared_ptr, which you keep too.
class CallbackRef {
 public:
  template <std::derived_from<Callback> T>
  CallbackRef(std::shared_ptr<T> callback)
      // A pointer to the base says nothing about what stands behind it: every hook is called then.
      : hooks_(std::same_as<T, Callback> ? ~uint64_t{0} : detail::overridden_hooks<T>()),
        callback_(std::move(callback)) {}
  template <class T>
  requires std::derived_from<std::remove_cvref_t<T>, Callback> CallbackRef(T&& callback)
      : hooks_(detail::overridden_hooks<std::remove_cvref_t<T>>()),
        callback_(std::make_shared<std::remove_cvref_t<T>>(std::forward<T>(callback))) {
    static_assert(!std::is_lvalue_reference_v<T>,
                  "levin: this would copy the callback; pass std::make_shared<...> to keep it, or the value itself");
  }

  const std::shared_ptr<Callback>& get() const { return callback_; }
  Callback* operator->() const { return callback_.get(); }
  bool overrides(Hook hook) const { return (hooks_ >> static_cast<int>(hook)) & 1; }

 private:
  uint64_t hooks_ = 0;
  std::shared_ptr<Callback> callback_;
};

}  // namespace levin
