#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/core/batch.h"
#include "levin/trainer/callback.h"
#include "levin/trainer/loaders.h"
#include "levin/trainer/module_hooks.h"
#include "levin/trainer/module_in_run.h"
#include "levin/trainer/optimizers.h"
#include "levin/trainer/step.h"

namespace levin {

namespace detail {

/// The steps and hooks of a batch, of any type: what the loops call. TrainModuleOf turns them into the typed ones.
class AnySteps {
 public:
  virtual ~AnySteps() = default;

  virtual StepOutput any_step(Stage, const AnyBatch&, const StepInfo&) = 0;
  /// False skips the rest of the epoch; in training alone.
  virtual bool any_batch_start(Stage, const AnyBatch&, const StepInfo&) = 0;
  virtual void any_batch_end(Stage, const StepOutput&, const AnyBatch&, const StepInfo&) = 0;
  /// Casts the floating tensors of a batch, then the three hooks of the transfer to the device.
  virtual void any_transfer(AnyBatch&, c10::Device, std::optional<c10::ScalarType> dtype, const StepInfo&) = 0;
  virtual AnyLoaders any_dataloader(Stage) = 0;
};

}  // namespace detail

/// Everything of a TrainModule that does not depend on its batch type. Its hooks are in levin/trainer/module_hooks.h,
/// what it may ask of the run in levin/trainer/module_in_run.h.
class TrainModuleBase : public ModuleInRun,
                        public Hyperparameters,
                        public FitHooks,
                        public EvaluationHooks,
                        public detail::AnySteps {
 public:
  using ModuleInRun::ModuleInRun;

  /// The optimizers of the module, with their schedulers. Called once, when the module is on its device.
  virtual Optimizers configure_optimizers() { return {}; }
  /// Builds what is too large to be built in the constructor. Called once by every fit, validate, test or predict.
  virtual void configure_model() {}
  /// More callbacks; one of the same class as one given to the trainer takes its place.
  virtual std::vector<CallbackRef> configure_callbacks() { return {}; }

  /// The switch to evaluation mode, and back. The trainer remembers the mode of each submodule and restores it.
  virtual void on_validation_model_eval() { eval(); }
  virtual void on_validation_model_train() {}
  virtual void on_validation_model_zero_grad() { zero_grad(); }
  virtual void on_test_model_eval() { eval(); }
  virtual void on_test_model_train() {}
  virtual void on_predict_model_eval() { eval(); }

  /// Backward of a loss; call `run_backward(loss)` inside an override.
  virtual void backward(const Tensor& loss) { run_backward(loss); }
  virtual void optimizer_zero_grad(Optimizer& optimizer) { optimizer.zero_grad(); }
  /// One optimizer step. The closure runs the training step, zero_grad, backward and clipping; an override must call
  /// it, or hand it to `optimizer.step(closure)`.
  virtual void optimizer_step(Optimizer& optimizer, const std::function<Tensor()>& closure) {
    closure();
    optimizer.step();
  }
  /// By default clips as gradient_clip_val and gradient_clip_algorithm say; call `clip_gradients` inside an override.
  virtual void configure_gradient_clipping(Optimizer& optimizer, double clip_val, std::string_view algorithm) {
    clip_gradients(optimizer, clip_val, algorithm);
  }
  virtual void lr_scheduler_step(Scheduler& scheduler, std::optional<double> metric) {
    metric ? scheduler.step(*metric) : scheduler.step();
  }
  /// Runs forward on a sample, so that the summary can show shapes; false: there is none.
  virtual bool run_sample() { return false; }

  /// false: training_step calls backward and the optimizers itself.
  bool automatic_optimization = true;
  /// On a GPU, Levin's loaders move batches there ahead of their use, so that on_before_batch_transfer already finds
  /// them there. False: the batch is moved when its turn comes, after that hook.
  bool prefetch_to_device = true;

  /// A hook inside of the training step that this class overrides, or may; empty when there is none.
  const std::string& overridden_in_step() const { return overridden_in_step_; }
  /// The trainer says so, which sees the type.
  void note_overridden_in_step(std::string name) { overridden_in_step_ = std::move(name); }

  /// Parameters need no gradient any more, or do again; freezing also switches to evaluation mode.
  void freeze();
  void unfreeze();

 private:
  std::string overridden_in_step_ = "hooks of the training step, perhaps";
};

namespace detail {

/// The first hook inside of the training step that T overrides, as far as that can be seen: a private one, or one with
/// an overload beside it, counts as overridden.
template <class T>
std::string overridden_in_step() {
  std::string name;
  const auto look = [&]<class Member>(const char* hook, Member) {
    constexpr bool unchanged = [] {
      if constexpr (std::is_invocable_v<Member, std::type_identity<T>>)
        return std::is_same_v<std::invoke_result_t<Member, std::type_identity<T>>,
                              std::invoke_result_t<Member, std::type_identity<TrainModuleBase>>>;
      else
        return false;
    }();
    if (!unchanged && name.empty()) name = hook;
  };
#define LEVIN_HOOK(hook) look(#hook, []<class C>(std::type_identity<C>) -> decltype(&C::hook) { return nullptr; })
  LEVIN_HOOK(on_before_zero_grad);
  LEVIN_HOOK(on_before_backward);
  LEVIN_HOOK(on_after_backward);
  LEVIN_HOOK(on_before_optimizer_step);
  LEVIN_HOOK(backward);
  LEVIN_HOOK(optimizer_zero_grad);
  LEVIN_HOOK(optimizer_step);
  LEVIN_HOOK(configure_gradient_clipping);
#undef LEVIN_HOOK
  return name;
}

}  // namespace detail

/// A model, its steps and its optimizers: everything of a training that is yours. B is what your loaders hand out.
///
///     struct Classifier : levin::TrainModule {
///       levin::StepOutput training_step(const levin::Batch& batch, const levin::StepInfo&) override {
///         auto loss = levin::cross_entropy(net(batch["image"]), batch["label"]);
///         log("train_loss", loss, {.prog_bar = true});
///         return loss;
///       }
///       levin::Optimizers configure_optimizers() override { return levin::optim::AdamW(parameters(), {.lr = 3e-4}); }
///     };
template <class B>
class TrainModuleOf : public TrainModuleBase, public DataHooks<B> {
 public:
  using BatchType = B;
  using TrainModuleBase::TrainModuleBase;

  virtual StepOutput training_step(const B&, const StepInfo&) { this->fail_missing("training_step", "fit"); }
  virtual StepOutput validation_step(const B&, const StepInfo&) { this->fail_missing("validation_step", "validation"); }
  virtual StepOutput test_step(const B&, const StepInfo&) { this->fail_missing("test_step", "test"); }
  virtual StepOutput predict_step(const B&, const StepInfo&) { this->fail_missing("predict_step", "predict"); }

  /// false skips the rest of the epoch.
  virtual bool on_train_batch_start(const B&, int64_t /*batch_idx*/) { return true; }
  virtual void on_train_batch_end(const StepOutput&, const B&, int64_t /*batch_idx*/) {}
  virtual void on_validation_batch_start(const B&, const StepInfo&) {}
  virtual void on_validation_batch_end(const StepOutput&, const B&, const StepInfo&) {}
  virtual void on_test_batch_start(const B&, const StepInfo&) {}
  virtual void on_test_batch_end(const StepOutput&, const B&, const StepInfo&) {}
  virtual void on_predict_batch_start(const B&, const StepInfo&) {}
  virtual void on_predict_batch_end(const StepOutput&, const B&, const StepInfo&) {}
  /// Around the transfer to the device; the batch may be changed.
  virtual void on_before_batch_transfer(B&, const StepInfo&) {}
  virtual void transfer_batch_to_device(B& batch, c10::Device device, const StepInfo&) {
    levin::each_tensor(batch, [&](Tensor& t) {
      if (t.defined() && t.device() != device) t = t.to(device, /*non_blocking=*/true);
    });
  }
  virtual void on_after_batch_transfer(B&, const StepInfo&) {}

 private:
  StepOutput any_step(Stage stage, const AnyBatch& batch, const StepInfo& at) final {
    switch (stage) {
      case Stage::kTrain:
        return training_step(batch.get<B>(), at);
      case Stage::kTest:
        return test_step(batch.get<B>(), at);
      case Stage::kPredict:
        return predict_step(batch.get<B>(), at);
      case Stage::kIdle:
      case Stage::kSanity:
      case Stage::kValidate:
        return validation_step(batch.get<B>(), at);
    }
    return {};
  }
  bool any_batch_start(Stage stage, const AnyBatch& batch, const StepInfo& at) final {
    const auto& typed = batch.get<B>();
    if (stage == Stage::kTrain) return on_train_batch_start(typed, at.batch_idx);
    if (stage == Stage::kTest)
      on_test_batch_start(typed, at);
    else if (stage == Stage::kPredict)
      on_predict_batch_start(typed, at);
    else
      on_validation_batch_start(typed, at);
    return true;
  }
  void any_batch_end(Stage stage, const StepOutput& output, const AnyBatch& batch, const StepInfo& at) final {
    const auto& typed = batch.get<B>();
    if (stage == Stage::kTrain)
      on_train_batch_end(output, typed, at.batch_idx);
    else if (stage == Stage::kTest)
      on_test_batch_end(output, typed, at);
    else if (stage == Stage::kPredict)
      on_predict_batch_end(output, typed, at);
    else
      on_validation_batch_end(output, typed, at);
  }
  void any_transfer(AnyBatch& batch, c10::Device device, std::optional<c10::ScalarType> dtype,
                    const StepInfo& at) final {
    auto& typed = batch.get<B>();
    if (dtype)
      levin::each_tensor(typed, [&](Tensor& t) {
        if (t.defined() && t.is_floating_point()) t = t.to(*dtype);
      });
    on_before_batch_transfer(typed, at);
    transfer_batch_to_device(typed, device, at);
    on_after_batch_transfer(typed, at);
  }
  detail::AnyLoaders any_dataloader(Stage stage) final { return this->sources(stage); }
};

/// A TrainModule of the batches that Levin's own datasets give.
using TrainModule = TrainModuleOf<Batch>;

}  // namespace levin
