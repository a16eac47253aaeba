#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "levin/core/batch.h"
#include "levin/core/error.h"
#include "levin/core/state_dict.h"
#include "levin/trainer/callback.h"
#include "levin/trainer/loaders.h"
#include "levin/trainer/optimizers.h"
#include "levin/trainer/step.h"

namespace levin {

class TrainerContext;

/// Everything of a TrainModule that does not depend on its batch type.
class TrainModuleBase : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  /// The optimizers of the module, with their schedulers. Called once, when the module is on its device.
  virtual Optimizers configure_optimizers() { return {}; }
  /// Builds what is too large to be built in the constructor. Called once by every fit, validate, test or predict.
  virtual void configure_model() {}
  /// More callbacks; one of the same class as one given to the trainer takes its place.
  virtual std::vector<CallbackRef> configure_callbacks() { return {}; }
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
  virtual void on_before_backward(const Tensor& /*loss*/) {}
  virtual void on_after_backward() {}
  virtual void on_before_optimizer_step(Optimizer&) {}
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
  /// The switch to evaluation mode, and back. The trainer remembers the mode of each submodule and puts it back itself.
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
  /// By itself clips as gradient_clip_val and gradient_clip_algorithm say; call `clip_gradients` inside an override.
  virtual void configure_gradient_clipping(Optimizer& optimizer, double clip_val, std::string_view algorithm) {
    clip_gradients(optimizer, clip_val, algorithm);
  }
  virtual void lr_scheduler_step(Scheduler& scheduler, std::optional<double> metric) {
    metric ? scheduler.step(*metric) : scheduler.step();
  }
  /// The checkpoint about to be written, and the one that was read: entries may be added and changed.
  virtual void on_save_checkpoint(StateDict& /*checkpoint*/) {}
  virtual void on_load_checkpoint(StateDict& /*checkpoint*/) {}
  /// Runs forward on a sample, so that the summary can show shapes; false: there is none.
  virtual bool run_sample() { return false; }

  /// false: training_step calls backward and the optimizers itself.
  bool automatic_optimization = true;
  /// On a GPU, Levin's loaders bring batches there ahead of their use, so that on_before_batch_transfer already finds
  /// them there. False: the batch goes when its turn comes, after that hook.
  bool prefetch_to_device = true;

  /// Kept in checkpoints and given to the loggers.
  StateDict hparams;
  void save_hyperparameters(StateDict values) { hparams = std::move(values); }

  /// Parameters need no gradient any more, or do again; freezing also switches to evaluation mode.
  void freeze();
  void unfreeze();

  /// A value for the progress bar, the loggers and the callbacks; see LogOptions. Outside of a run it goes nowhere,
  /// with a warning.
  void log(std::string_view name, const Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});
  void log_dict(std::initializer_list<std::pair<std::string_view, Tensor>> values, const LogOptions& options = {});
  /// One line on stdout, of rank 0; the progress bar makes way.
  template <class... Args>
  void print(const Args&... args) {
    print_line(detail::concat(args...));
  }

  /// Optimizers as the run uses them: for manual optimization.
  Optimizer& optimizer(size_t index = 0);
  const std::vector<Optimizer>& optimizers();
  Scheduler& lr_scheduler(size_t index = 0);
  /// Backward in manual optimization: in the run's precision, reduced over the ranks.
  void manual_backward(const Tensor& loss);
  /// Only this optimizer's parameters get gradients until untoggle.
  void toggle_optimizer(Optimizer& optimizer);
  void untoggle_optimizer(Optimizer& optimizer);
  /// "norm" or "value"; 0 does nothing.
  void clip_gradients(Optimizer& optimizer, double clip_val, std::string_view algorithm = "norm");

  /// The run under way; an Error outside of one.
  TrainerContext& trainer() const;
  bool has_trainer() const { return context_ != nullptr; }
  int64_t current_epoch() const;
  int64_t global_step() const;
  c10::Device device() const;

  // What the loops call; TrainModuleOf turns them into the typed hooks.
  virtual StepOutput any_training_step(void* batch, const StepInfo&) = 0;
  virtual StepOutput any_validation_step(void* batch, const StepInfo&) = 0;
  virtual StepOutput any_test_step(void* batch, const StepInfo&) = 0;
  virtual StepOutput any_predict_step(void* batch, const StepInfo&) = 0;
  virtual bool any_train_batch_start(void* batch, int64_t batch_idx) = 0;
  virtual void any_train_batch_end(const StepOutput&, void* batch, int64_t batch_idx) = 0;
  virtual void any_eval_batch_start(Stage, void* batch, const StepInfo&) = 0;
  virtual void any_eval_batch_end(Stage, const StepOutput&, void* batch, const StepInfo&) = 0;
  /// Casts the floating tensors of a batch, then the three hooks of the way to the device.
  virtual void any_transfer(void* batch, c10::Device, std::optional<c10::ScalarType> dtype, const StepInfo&) = 0;
  virtual detail::AnyLoaders any_train_dataloader() = 0;
  virtual detail::AnyLoaders any_eval_dataloader(Stage) = 0;
  void set_context(TrainerContext* context) { context_ = context; }

 protected:
  void run_backward(const Tensor& loss);
  void print_line(const std::string& line);
  [[noreturn]] void fail_missing(const char* step, const char* what) const;

 private:
  void warn_log_goes_nowhere(std::string_view value) const;

  TrainerContext* context_ = nullptr;
  std::vector<std::pair<Tensor, bool>> toggled_;
};

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
class TrainModuleOf : public TrainModuleBase {
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
  /// Around the way to the device; the batch may be changed.
  virtual void on_before_batch_transfer(B&, const StepInfo&) {}
  virtual void transfer_batch_to_device(B& batch, c10::Device device, const StepInfo&) {
    levin::each_tensor(batch, [&](Tensor& t) {
      if (t.defined() && t.device() != device) t = t.to(device, /*non_blocking=*/true);
    });
  }
  virtual void on_after_batch_transfer(B&, const StepInfo&) {}

  /// Loaders of the module's own, for fit(module) without any.
  virtual Loaders<B> train_dataloader() { return {}; }
  virtual Loaders<B> val_dataloader() { return {}; }
  virtual Loaders<B> test_dataloader() { return {}; }
  virtual Loaders<B> predict_dataloader() { return {}; }

  StepOutput any_training_step(void* batch, const StepInfo& at) final { return training_step(as(batch), at); }
  StepOutput any_validation_step(void* batch, const StepInfo& at) final { return validation_step(as(batch), at); }
  StepOutput any_test_step(void* batch, const StepInfo& at) final { return test_step(as(batch), at); }
  StepOutput any_predict_step(void* batch, const StepInfo& at) final { return predict_step(as(batch), at); }
  bool any_train_batch_start(void* batch, int64_t i) final { return on_train_batch_start(as(batch), i); }
  void any_train_batch_end(const StepOutput& out, void* batch, int64_t i) final {
    on_train_batch_end(out, as(batch), i);
  }
  void any_eval_batch_start(Stage stage, void* batch, const StepInfo& at) final {
    if (stage == Stage::kTest)
      on_test_batch_start(as(batch), at);
    else if (stage == Stage::kPredict)
      on_predict_batch_start(as(batch), at);
    else
      on_validation_batch_start(as(batch), at);
  }
  void any_eval_batch_end(Stage stage, const StepOutput& out, void* batch, const StepInfo& at) final {
    if (stage == Stage::kTest)
      on_test_batch_end(out, as(batch), at);
    else if (stage == Stage::kPredict)
      on_predict_batch_end(out, as(batch), at);
    else
      on_validation_batch_end(out, as(batch), at);
  }
  void any_transfer(void* batch, c10::Device device, std::optional<c10::ScalarType> dtype, const StepInfo& at) final {
    if (dtype)
      levin::each_tensor(as(batch), [&](Tensor& t) {
        if (t.defined() && t.is_floating_point()) t = t.to(*dtype);
      });
    on_before_batch_transfer(as(batch), at);
    transfer_batch_to_device(as(batch), device, at);
    on_after_batch_transfer(as(batch), at);
  }
  detail::AnyLoaders any_train_dataloader() final { return train_dataloader().sources(); }
  detail::AnyLoaders any_eval_dataloader(Stage stage) final {
    if (stage == Stage::kTest) return test_dataloader().sources();
    if (stage == Stage::kPredict) return predict_dataloader().sources();
    return val_dataloader().sources();
  }

 private:
  static B& as(void* batch) { return *static_cast<B*>(batch); }
};

/// A TrainModule of the batches that Levin's own datasets give.
using TrainModule = TrainModuleOf<Batch>;

}  // namespace levin
