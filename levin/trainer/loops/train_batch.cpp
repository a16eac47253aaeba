// One training batch: forward, backward and, where a window of accumulation ends, the optimizer's step.
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/trainer/run.h"

namespace levin::detail {
namespace {

/// The part of a step that an optimizer may want to evaluate itself: forward, zero_grad, backward and what comes before
/// the update. Everything it needs is behind one pointer, so that a std::function of it allocates nothing.
struct Closure {
  Run& run;
  void* batch;
  StepInfo at;
  StepOutput& output;
  bool first_of_window;
  bool steps;

  Tensor operator()() {
    auto& module = run.module();
    {
      run.set_site(step_site(Stage::kTrain));
      const auto time = run.span(Run::Action::kTrainingStep);
      output = run.run_step([&] { return module.any_training_step(batch, at); });
    }
    auto loss = output.loss;
    if (loss.defined() && run.accumulate_ > 1) loss = loss / run.accumulate_;
    auto& optimizer = run.optimizers_.front();
    if (first_of_window) {
      run.call(
          Hook::kBeforeZeroGrad, [&](Callback& c) { c.on_before_zero_grad(run, optimizer); },
          [&] { module.on_before_zero_grad(optimizer); });
      run.set_doing("optimizer_zero_grad");
      const auto time = run.span(Run::Action::kZeroGrad);
      module.optimizer_zero_grad(optimizer);
    }
    if (!loss.defined()) {
      LEVIN_CHECK(
          run.fabric().world_size() == 1,
          "[trainer] training_step skipped a batch on this rank: with several ranks every one must return a loss");
      return loss;
    }
    run.backward(loss);
    if (steps) before_update(optimizer);
    run.set_doing("optimizer_step");
    return loss;
  }

  void before_update(Optimizer& optimizer) {
    auto& module = run.module();
    if (run.fabric().grad_scaler()) run.fabric().unscale_gradients(optimizer);
    run.call(
        Hook::kBeforeOptimizerStep, [&](Callback& c) { c.on_before_optimizer_step(run, optimizer); },
        [&] { module.on_before_optimizer_step(optimizer); });
    run.set_doing("configure_gradient_clipping");
    const auto time = run.span(Run::Action::kClip);
    module.configure_gradient_clipping(optimizer, run.plan().clip_val, run.plan().clips_value ? "value" : "norm");
  }
};

}  // namespace

void Run::backward(const Tensor& loss) {
  call(
      Hook::kBeforeBackward, [&](Callback& c) { c.on_before_backward(*this, loss); },
      [&] { module_->on_before_backward(loss); });
  {
    set_doing("backward");
    const auto time = span(Action::kBackward);
    module_->backward(loss);
  }
  call(
      Hook::kAfterBackward, [&](Callback& c) { c.on_after_backward(*this); }, [&] { module_->on_after_backward(); });
}

void Run::manual_backward(const Tensor& loss) {
  LEVIN_CHECK(!module_->automatic_optimization,
              "[manual_backward] is for modules that set automatic_optimization = false");
  const auto* outer_site = site_;
  const auto outer_doing = doing_;
  auto& around = wrapped_->setup_call();
  auto here = loss;
  if (!around.plain) {
    std::vector<Tensor*> outputs{&here};
    finish_call(around, outputs);
  }
  backward(here);
  site_ = outer_site;
  doing_ = outer_doing;
}

void Run::clip_gradients(Optimizer& optimizer, double clip_val, std::string_view algorithm) {
  if (clip_val <= 0) return;
  auto of_fabric = as_set_up(optimizer);
  if (algorithm == "value")
    fabric_->clip_gradients(of_fabric, {.clip_val = clip_val});
  else
    fabric_->clip_gradients(of_fabric, {.max_norm = clip_val, .error_if_nonfinite = false});
}

bool run_training_batch(Run& run, void* batch, int64_t batch_idx, StepOutput& output) {
  auto& module = run.module();
  const StepInfo at{batch_idx, 0};
  if (!module.automatic_optimization) {
    run.set_site(step_site(Stage::kTrain));
    const auto time = run.span(Run::Action::kTrainingStep);
    output = run.run_step([&] { return module.any_training_step(batch, at); });
    return true;
  }
  if (run.forward_only_ || run.optimizers_.empty()) {
    at::NoGradGuard no_grad;
    run.set_site(step_site(Stage::kTrain));
    output = run.run_step([&] { return module.any_training_step(batch, at); });
    return false;
  }
  // Windows are counted within the epoch, and its last batch ends one however short it is.
  const bool steps = (batch_idx + 1) % run.accumulate_ == 0 || run.is_last_batch_;
  Closure closure{run, batch, at, output, batch_idx % run.accumulate_ == 0, steps};
  if (!steps) {
    const NoSync no_sync(&run.wrapped_->setup_call());
    closure();
    return false;
  }
  const auto time = run.span(Run::Action::kOptimizerStep);
  module.optimizer_step(run.optimizers_.front(), [&closure] { return closure(); });
  ++run.progress_.global_step;
  return true;
}

void step_schedulers(Run& run, std::string_view interval, bool plateau) {
  if (!run.module().automatic_optimization || run.forward_only_) return;
  for (auto& config : run.schedulers_) {
    if (config.interval != interval || config.scheduler.needs_metric() != plateau) continue;
    const int64_t count = (interval == "step" ? run.progress_.batch : run.progress_.epoch) + 1;
    if (count % config.frequency != 0) continue;
    std::optional<double> metric;
    if (plateau) {
      metric = run.metric(config.monitor);
      if (!metric) {
        const auto line = concat("[trainer] the scheduler ", config.scheduler.name(), " follows \"", config.monitor,
                                 "\", which has not been logged");
        LEVIN_CHECK(!config.strict, line, "; log it, or set strict = false");
        warn_once(line);
        continue;
      }
    }
    run.set_site(kNoLogging);
    run.set_doing("lr_scheduler_step");
    const auto time = run.span(Run::Action::kScheduler);
    run.module().lr_scheduler_step(config.scheduler, metric);
  }
}

}  // namespace levin::detail
