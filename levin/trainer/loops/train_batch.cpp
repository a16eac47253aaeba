// One training batch: forward, backward and, where a window of accumulation ends, the optimizer's step.
#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/trainer/loops/loops.h"
#include "levin/trainer/run/call.h"
#include "levin/trainer/run/run.h"
#include "levin/trainer/run/step.h"

namespace levin::detail {
namespace {

StepOutput training_step(Run& run, const AnyBatch& batch, const StepInfo& at) {
  run.state.place.set_site(step_site(Stage::kTrain));
  const auto time = run.hooks.span(Action::kTrainingStep);
  return run_step(run, [&] { return run.model.module->any_step(Stage::kTrain, batch, at); });
}

/// The part of a step that an optimizer may want to evaluate itself: forward, zero_grad, backward and what comes before
/// the update. Everything it needs is behind one pointer, so that a std::function of it allocates nothing.
struct Closure {
  Run& run;
  const AnyBatch& batch;
  StepInfo at;
  StepOutput& output;
  bool first_of_window;
  bool steps;

  Tensor operator()() {
    if (const int parts = step_parts(run, batch)) return in_parts(parts);
    output = training_step(run, batch, at);
    auto loss = output.loss;
    if (loss.defined() && run.plan.accumulate > 1) loss = loss / run.plan.accumulate;
    auto& optimizer = run.model.optimizers.front();
    zero_grad(optimizer);
    if (!loss.defined()) {
      LEVIN_CHECK(
          run.fabric->world_size() == 1,
          "[trainer] training_step skipped a batch on this rank: with several ranks every one must return a loss");
      // The step is made with the gradients of the batches before it.
      const bool has_gradient =
          std::ranges::any_of(optimizer.all_params(), [](const Tensor& param) { return param.grad().defined(); });
      if (steps && has_gradient) before_update(optimizer);
      if (auto* scaler = run.fabric->grad_scaler(); scaler && steps && !has_gradient) scaler->skip_step();
      run.state.place.set_doing("optimizer_step");
      return loss;
    }
    backward(run, guarded_loss(run, loss));
    if (steps) before_update(optimizer);
    run.state.place.set_doing("optimizer_step");
    return loss;
  }

  /// Forward and backward of micro-batches are one, so gradients are cleared before.
  Tensor in_parts(int parts) {
    auto& optimizer = run.model.optimizers.front();
    zero_grad(optimizer);
    {
      run.state.place.set_site(step_site(Stage::kTrain));
      const auto time = run.hooks.span(Action::kTrainingStep);
      output = run_in_parts(run, Stage::kTrain, batch, at, parts, 1.0 / static_cast<double>(run.plan.accumulate));
    }
    call<Hook::on_after_backward>(run);
    guarded_loss(run, output.loss);
    if (steps) before_update(optimizer);
    run.state.place.set_doing("optimizer_step");
    return output.loss / run.plan.accumulate;
  }

  void zero_grad(Optimizer& optimizer) {
    if (!first_of_window) return;
    call<Hook::on_before_zero_grad>(run, optimizer);
    run.state.place.set_doing("optimizer_zero_grad");
    const auto time = run.hooks.span(Action::kZeroGrad);
    run.model.module->optimizer_zero_grad(optimizer);
  }

  void before_update(Optimizer& optimizer) {
    if (run.fabric->grad_scaler()) run.fabric->unscale_gradients(optimizer);
    call<Hook::on_before_optimizer_step>(run, optimizer);
    if (refuses_gradients(run, optimizer)) return;
    run.state.place.set_doing("configure_gradient_clipping");
    const auto time = run.hooks.span(Action::kClip);
    const auto& plan = run.plan;
    run.model.module->configure_gradient_clipping(optimizer, plan.clip_val, plan.clips_value ? "value" : "norm");
  }
};

/// The whole step from a CUDA graph. What the graph has fixed besides shapes is in the key.
void run_compiled(Run& run, CompiledSteps& compiled, const Closure& closure, StepOutput& output,
                  const std::function<void()>& whole_step) {
  const auto& plan = run.plan;
  run.state.place.set_site(step_site(Stage::kTrain));
  StepCall call{.name = step_site(Stage::kTrain).hook,
                .accumulates_gradients = plan.accumulate > 1,
                .drops_gradients = closure.first_of_window};
  for (const int64_t number : {int64_t{closure.first_of_window}, int64_t{closure.steps}, plan.accumulate,
                               std::bit_cast<int64_t>(plan.clip_val), int64_t{plan.clips_value}})
    call.key.add(number);
  output = compiled.run(run, std::move(call), closure.batch, [&] {
    whole_step();
    if (!output.loss.defined()) refuse_capture("training_step skipped a batch");
    return std::exchange(output, {});
  });
  run.state.place.set_doing("optimizer_step");
}

}  // namespace

bool run_training_batch(Run& run, const AnyBatch& batch, int64_t batch_idx, StepOutput& output) {
  auto& module = *run.model.module;
  const StepInfo at{batch_idx, 0};
  if (!module.automatic_optimization) {
    compiled_steps(run, Stage::kTrain);  // says why not
    output = training_step(run, batch, at);
    return true;
  }
  if (run.state.forward_only || run.model.optimizers.empty()) {
    at::NoGradGuard no_grad;
    const int parts = step_parts(run, batch);
    output = parts ? run_in_parts(run, Stage::kTrain, batch, at, parts) : training_step(run, batch, at);
    return false;
  }
  // The last batch of an epoch ends a window however short it is.
  auto& state = run.state;
  if (!state.window_open) state.window_begin = batch_idx;
  const bool steps = batch_idx + 1 - state.window_begin >= run.plan.accumulate || state.is_last_batch;
  if (!state.window_open) run.finite = {};
  Closure closure{run, batch, at, output, !state.window_open, steps};
  const auto whole_step = [&] {
    if (!steps) {
      const NoSync no_sync(&run.model.wrapped->setup_call());
      closure();
      return;
    }
    const auto time = run.hooks.span(Action::kOptimizerStep);
    module.optimizer_step(run.model.optimizers.front(), [&closure] { return closure(); });
  };
  if (auto* compiled = compiled_steps(run, Stage::kTrain))
    run_compiled(run, *compiled, closure, output, whole_step);
  else
    whole_step();
  const bool stepped = steps && !run.finite.comes_again;
  state.window_open = !stepped;
  if (stepped) ++state.progress.global_step;
  return stepped;
}

void step_schedulers(Run& run, std::string_view interval, bool plateau, int64_t done) {
  if (!run.model.module->automatic_optimization || run.state.forward_only) return;
  for (auto& config : run.model.schedulers) {
    if (config.interval != interval || config.scheduler.needs_metric() != plateau) continue;
    if (done % config.frequency != 0) continue;
    std::optional<double> metric;
    if (plateau) {
      metric = detail::metric(run, config.monitor);
      if (run.fabric->world_size() > 1) {  // one that was not reduced differs by rank, and rates must not
        const bool is_there = run.fabric->broadcast(int64_t{metric.has_value()}) != 0;
        const auto value = run.fabric->broadcast(metric.value_or(0.0));
        metric = is_there ? std::optional(value) : std::nullopt;
      }
      if (!metric) {
        const auto line = concat("[trainer] the scheduler ", config.scheduler.name(), " follows \"", config.monitor,
                                 "\", which has not been logged");
        LEVIN_CHECK(!config.strict, line, "; log it, or set strict = false");
        warn_once(line);
        continue;
      }
    }
    run.state.place.set_site(kNoLogging);
    run.state.place.set_doing("lr_scheduler_step");
    const auto time = run.hooks.span(Action::kScheduler);
    run.model.module->lr_scheduler_step(config.scheduler, metric);
  }
}

}  // namespace levin::detail
