#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
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

/// Something that happens along the way: derive from it and override what you need. What is not overridden costs a
/// call of an empty function.
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

/// Whether `T` has a member from Callback unchanged, as far as that can be seen: a private one, or one with an overload
/// beside it, counts as its own.
template <class T, class Member>
constexpr bool is_unchanged(Member) {
  if constexpr (std::is_invocable_v<Member, std::type_identity<T>>)
    return std::is_same_v<std::invoke_result_t<Member, std::type_identity<T>>,
                          std::invoke_result_t<Member, std::type_identity<Callback>>>;
  else
    return false;
}

/// The hooks that a profile of `T` has rows for. Who is called does not depend on it: every hook of every callback is.
template <class T>
constexpr uint64_t overridden_hooks() {
  uint64_t mask = 0;
  const auto mark = [&](Hook hook, bool unchanged) {
    if (!unchanged) mask |= uint64_t{1} << static_cast<int>(hook);
  };
  // clang-format off
  mark(Hook::kSetup, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::setup) { return nullptr; }));
  mark(Hook::kTeardown, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::teardown) { return nullptr; }));
  mark(Hook::kFitStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_fit_start) { return nullptr; }));
  mark(Hook::kFitEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_fit_end) { return nullptr; }));
  mark(Hook::kSanityCheckStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_sanity_check_start) { return nullptr; }));
  mark(Hook::kSanityCheckEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_sanity_check_end) { return nullptr; }));
  mark(Hook::kTrainStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_train_start) { return nullptr; }));
  mark(Hook::kTrainEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_train_end) { return nullptr; }));
  mark(Hook::kTrainEpochStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_train_epoch_start) { return nullptr; }));
  mark(Hook::kTrainEpochEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_train_epoch_end) { return nullptr; }));
  mark(Hook::kTrainBatchStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_train_batch_start) { return nullptr; }));
  mark(Hook::kTrainBatchEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_train_batch_end) { return nullptr; }));
  mark(Hook::kBeforeZeroGrad, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_before_zero_grad) { return nullptr; }));
  mark(Hook::kBeforeBackward, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_before_backward) { return nullptr; }));
  mark(Hook::kAfterBackward, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_after_backward) { return nullptr; }));
  mark(Hook::kBeforeOptimizerStep, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_before_optimizer_step) { return nullptr; }));
  mark(Hook::kValidationStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_validation_start) { return nullptr; }));
  mark(Hook::kValidationEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_validation_end) { return nullptr; }));
  mark(Hook::kValidationEpochStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_validation_epoch_start) { return nullptr; }));
  mark(Hook::kValidationEpochEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_validation_epoch_end) { return nullptr; }));
  mark(Hook::kValidationBatchStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_validation_batch_start) { return nullptr; }));
  mark(Hook::kValidationBatchEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_validation_batch_end) { return nullptr; }));
  mark(Hook::kTestStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_test_start) { return nullptr; }));
  mark(Hook::kTestEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_test_end) { return nullptr; }));
  mark(Hook::kTestEpochStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_test_epoch_start) { return nullptr; }));
  mark(Hook::kTestEpochEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_test_epoch_end) { return nullptr; }));
  mark(Hook::kTestBatchStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_test_batch_start) { return nullptr; }));
  mark(Hook::kTestBatchEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_test_batch_end) { return nullptr; }));
  mark(Hook::kPredictStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_predict_start) { return nullptr; }));
  mark(Hook::kPredictEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_predict_end) { return nullptr; }));
  mark(Hook::kPredictEpochStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_predict_epoch_start) { return nullptr; }));
  mark(Hook::kPredictEpochEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_predict_epoch_end) { return nullptr; }));
  mark(Hook::kPredictBatchStart, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_predict_batch_start) { return nullptr; }));
  mark(Hook::kPredictBatchEnd, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_predict_batch_end) { return nullptr; }));
  mark(Hook::kSaveCheckpoint, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_save_checkpoint) { return nullptr; }));
  mark(Hook::kLoadCheckpoint, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_load_checkpoint) { return nullptr; }));
  mark(Hook::kException, is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::on_exception) { return nullptr; }));
  // clang-format on
  return mask;
}

}  // namespace detail

/// A callback as `callbacks = {...}` takes it: a value, which the trainer keeps, or a shared_ptr, which you keep too.
class CallbackRef {
 public:
  template <std::derived_from<Callback> T>
  CallbackRef(std::shared_ptr<T> callback)
      // What stands behind a pointer to a base may override any of them.
      : hooks_(callback && typeid(*callback) == typeid(T) ? detail::overridden_hooks<T>() : ~uint64_t{0}),
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
  /// Whether a profile has a row for it; true where that cannot be known.
  bool overrides(Hook hook) const { return (hooks_ >> static_cast<int>(hook)) & 1; }

 private:
  uint64_t hooks_ = 0;
  std::shared_ptr<Callback> callback_;
};

}  // namespace levin
