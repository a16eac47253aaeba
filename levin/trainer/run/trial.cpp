// Training steps for tuners: everything is restored afterwards.
#include "levin/trainer/run/trial.h"

#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/state_copy.h"
#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/trainer/loops/loops.h"
#include "levin/trainer/run/run.h"
#include "levin/trainer/run/step.h"

namespace levin::detail {
namespace {

/// What training changes, as it was.
class Snapshot {
 public:
  explicit Snapshot(Run& run)
      : run_(run),
        state_(run.state),
        data_(run.data),
        metrics_(run.metrics),
        model_(copy_of_state(module_state_dict(*run.model.module)).to_dict()),
        rng_(RngState::capture()) {
    for (const auto& optimizer : run.model.optimizers) optimizers_.push_back(copy_of_state(optimizer.state_dict()));
    for (const auto& config : run.model.schedulers) schedulers_.push_back(copy_of_state(config.scheduler.state_dict()));
    const auto& fabric = *run.fabric;
    if (auto* scaler = fabric.grad_scaler()) scaler_ = scaler->state_dict();
    fp8_ = fabric.fp8_state().state_dict();
    if (!fabric.device().is_cpu()) device_rng_ = fabric.accelerator().rng_state(fabric.device());
    loggers_.swap(run.logs.loggers);
    listeners_ = run.hooks.silence();
    run.in_trial = true;
  }
  /// An Error when it cannot be: the run must not continue then. What needs no memory comes first.
  void restore() {
    run_.in_trial = false;
    run_.state = state_;
    run_.data = std::move(data_);
    run_.metrics = std::move(metrics_);
    run_.checkpoints.waiting.clear();
    run_.logs.loggers.swap(loggers_);
    run_.hooks.listen(std::move(listeners_));
    auto& model = run_.model;
    auto& fabric = *run_.fabric;
    try {
      for (auto& optimizer : model.optimizers) optimizer.zero_grad();  // their memory may be needed
      load_module_state_dict(*model.module, model_);
      for (size_t i = 0; i < optimizers_.size(); ++i) model.optimizers[i].load_state_dict(optimizers_[i].to_dict());
      for (size_t i = 0; i < schedulers_.size(); ++i)
        model.schedulers[i].scheduler.load_state_dict(schedulers_[i].to_dict());
      if (auto* scaler = fabric.grad_scaler()) scaler->load_state_dict(scaler_);
      fabric.fp8_state().load_state_dict(fp8_);
      if (device_rng_.defined()) fabric.accelerator().set_rng_state(fabric.device(), device_rng_);
      rng_.restore();
    } catch (const std::exception& error) {
      fail(concat("[trainer] the state before a trial could not be put back: ", one_line(error)));
    }
  }

 private:
  Run& run_;
  LoopState state_;
  RunData data_;
  LoggedMetrics metrics_;
  StateDict model_;
  StateList optimizers_, schedulers_;
  StateDict scaler_, fp8_;
  RngState rng_;
  Tensor device_rng_;
  std::vector<std::shared_ptr<Logger>> loggers_;
  std::vector<Callback*> listeners_;
};

bool run_trial_steps(Run& run, const Trial& trial) {
  auto& state = run.state;
  state.stage = Stage::kTrain;
  if (trial.batch_size > 0)
    set_train_batch_size(run, trial.batch_size);
  else
    load_train_data(run);
  auto& source = *run.data.train.loaders.front();
  run.model.module->train();
  StepOutput output;
  int64_t batch_idx = 0;
  source.start(state.progress.epoch);
  bool complete = true;
  for (int64_t step = 0; step < trial.steps;) {
    const auto batch = next_batch(run, source, {batch_idx, 0});
    if (batch.empty()) {
      complete = batch_idx > 0;
      if (!complete) break;
      source.start(state.progress.epoch);  // a short loader goes round
      state.window_open = false;
      batch_idx = 0;
      continue;
    }
    if (trial.before_step) trial.before_step(step);
    state.enter_batch(batch);
    run.metrics.train.start_batch();
    state.is_last_batch = false;
    const bool stepped = run_training_batch(run, batch, batch_idx++, output);
    state.leave_batch();
    if (!stepped) continue;
    const double loss = output.loss.defined() ? output.loss.item<double>() : 0;
    const bool keep_going = !trial.after_step || trial.after_step(step, loss);
    ++step;
    if (!keep_going) {
      complete = false;
      break;
    }
  }
  source.finish();
  return complete;
}

}  // namespace

bool run_trial(Run& run, const Trial& trial) {
  const auto& state = run.state;
  LEVIN_CHECK(state.fitting && !state.inside_batch && state.progress.batch == 0 && !run.model.optimizers.empty(),
              "[trainer] a trial can run in on_fit_start and on_train_start of a fit with an optimizer");
  Snapshot snapshot(run);
  bool complete = false;
  try {
    complete = run_trial_steps(run, trial);
  } catch (...) {
    // Here what the steps had made is freed: there is memory to restore from.
    snapshot.restore();
    throw;
  }
  snapshot.restore();
  return complete;
}

}  // namespace levin::detail
