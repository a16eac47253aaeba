#include "levin/trainer/run/compiled.h"

#include "levin/core/error.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

const char* step_name(Stage stage) {
  return step_site(stage).hook;
}

/// Code of the host that is part of a training step and would not run in a replay; empty when there is none.
std::string host_code(const Run& run) {
  const auto& module = *run.model.module;
  if (!module.automatic_optimization) return "the module optimizes manually (automatic_optimization = false)";
  if (const auto name = module.overridden_in_step(); !name.empty())
    return concat(module.name(), " overrides ", name, ", which would not be called in replays");
  for (const auto& callback : run.hooks.callbacks())
    for (const auto hook :
         {Hook::on_before_zero_grad, Hook::on_before_backward, Hook::on_after_backward, Hook::on_before_optimizer_step})
      if (callback.overrides(hook) && callback->hears(hook))
        return concat("callback ", callback->state_key(), " has ", hook_site(hook).hook,
                      ", which would not be called in replays");
  return {};
}

}  // namespace

StepOutput CompiledSteps::run(Run& run, StepCall call, const AnyBatch& batch, const std::function<StepOutput()>& step) {
  batch.each_tensor([&](const Tensor& tensor) {
    call.key.add(tensor);
    // The batch is the run's; the graph gets its own tensors in their place while it is captured.
    if (tensor.defined()) call.inputs.push_back(const_cast<Tensor*>(&tensor));
  });
  const auto* site = run.state.place.site;
  std::shared_ptr<Result> result;
  call.run = [&] {
    result = std::make_shared<Result>();
    struct Recording {
      Result*& now;
      ~Recording() { now = nullptr; }
    } recording{recording_};
    if (is_capturing()) recording_ = result.get();
    result->output = step();
    if (!is_capturing()) return;
    result->output.each_tensor([](Tensor& tensor) {
      if (tensor.defined()) tensor = tensor.detach();
    });
  };
  auto* graph = compiler_->call(call);
  if (!graph) return std::move(result->output);
  if (result) graph->result = result;
  const auto& kept = *std::static_pointer_cast<Result>(graph->result);
  const at::NoGradGuard no_grad;
  run.state.place.site = site;  // hooks inside the step have moved it
  for (const auto& logged : kept.logged) {
    auto options = logged.options;
    options.reduce_fx = logged.reduce_fx;
    log_value(run, logged.name, logged.value.clone(), options);
  }
  auto output = kept.output;
  output.each_tensor([](Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.clone();
  });
  return output;
}

bool CompiledSteps::record(std::string_view name, const LoggedValue& value, const LogOptions& options) {
  if (!recording_) return false;
  const auto* tensor = std::get_if<Tensor>(&value);
  if (!tensor || tensor->is_cpu())
    refuse_capture(
        concat("\"", name,
               "\" is logged as a number of the host, which replays would repeat; log a tensor of the device, or "
               "log it in on_train_batch_end"));
  recording_->logged.push_back({std::string(name), tensor->detach(), options, std::string(options.reduce_fx)});
  return true;
}

CompiledSteps* compiled_steps(Run& run, Stage stage) {
  if (!run.plan.fabric.compile || run.in_trial) return nullptr;
  if (!run.compiled) {
    auto compiler = run.fabric->step_compiler({});
    run.compiled = std::make_unique<CompiledSteps>(std::move(compiler));
    if (!run.compiled->has_compiler()) return nullptr;
    if (run.state.fitting)
      if (const auto reason = host_code(run); !reason.empty())
        run.compiled->compiler().refuse(step_name(Stage::kTrain), reason);
  }
  if (!run.compiled->has_compiler() || run.compiled->compiler().refuses(step_name(stage))) return nullptr;
  return run.compiled.get();
}

}  // namespace levin::detail
