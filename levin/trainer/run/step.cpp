#include "levin/trainer/run/step.h"

#include "levin/core/error.h"
#include "levin/trainer/run/call.h"
#include "levin/trainer/run/manual_optimizer.h"

namespace levin::detail {

AnyBatch next_batch(Run& run, BatchSource& source, const StepInfo& at) {
  auto& place = run.state.place;
  place.at = at;
  place.set_doing("the loader");
  AnyBatch batch;
  {
    const auto time =
        run.hooks.span(run.state.stage == Stage::kTrain ? Action::kNextTrainBatch : Action::kNextEvalBatch);
    batch = source.next();
  }
  if (batch.empty()) return batch;
  place.site = &kTransferSite;
  place.set_doing("transfer_batch_to_device");
  const auto time = run.hooks.span(Action::kTransfer);
  run.model.module->any_transfer(batch, run.fabric->device(), run.fabric->plan().precision.inputs, at);
  return batch;
}

void backward(Run& run, const Tensor& loss) {
  call<Hook::on_before_backward>(run, loss);
  {
    run.state.place.set_doing("backward");
    const auto time = run.hooks.span(Action::kBackward);
    run.model.module->backward(loss);
  }
  call<Hook::on_after_backward>(run);
}

void manual_backward(Run& run, const Tensor& loss) {
  LEVIN_CHECK(!run.model.module->automatic_optimization,
              "[manual_backward] is for modules that set automatic_optimization = false");
  auto& place = run.state.place;
  const auto* outer_site = place.site;
  const auto outer_doing = place.doing;
  auto& around = run.model.wrapped->setup_call();
  auto here = loss;
  if (!around.plain) {
    std::vector<Tensor*> outputs{&here};
    finish_call(around, outputs);
  }
  backward(run, here);
  place.site = outer_site;
  place.doing = outer_doing;
}

void clip_gradients(Run& run, Optimizer& optimizer, double clip_val, std::string_view algorithm) {
  if (clip_val <= 0) return;
  auto of_fabric = as_set_up(optimizer);
  if (algorithm == "value")
    run.fabric->clip_gradients(of_fabric, {.clip_val = clip_val});
  else
    run.fabric->clip_gradients(of_fabric, {.max_norm = clip_val, .error_if_nonfinite = false});
}

}  // namespace levin::detail
