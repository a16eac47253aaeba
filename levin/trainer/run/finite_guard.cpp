#include "levin/trainer/run/finite_guard.h"

#include <cmath>
#include <limits>

#include <ATen/ops/scalar_tensor.h>

#include "levin/core/error.h"
#include "levin/optim/step/finite.h"
#include "levin/trainer/cpu_number.h"
#include "levin/trainer/nonfinite.h"
#include "levin/trainer/run/rollback.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

bool acts(const Run& run) {
  return run.plan.on_nonfinite == NonFinitePolicy::kStop || run.plan.on_nonfinite == NonFinitePolicy::kRollback;
}

/// In float16 the loss scaler leaves steps out, as it must.
bool looks_at_steps(const Run& run) {
  return acts(run) && !run.plan.barebones && !run.in_trial && run.fabric->device().is_cpu() &&
         !run.fabric->grad_scaler();
}

void act_on(Run& run, int64_t epoch, int64_t batch, const char* what, const char* after) {
  if (run.plan.on_nonfinite == NonFinitePolicy::kRollback) return roll_back(run, epoch, batch, what);
  throw NonFiniteError(epoch, batch,
                       concat("[trainer.fit] ", what, " nan or inf in epoch ", epoch, ", batch ", batch, "; ", after,
                              ". detect_anomaly = true finds the operation; on_nonfinite = \"skip\" leaves such steps "
                              "out",
                              run.fabric->world_size() > 1 ? " on all ranks" : ""));
}

}  // namespace

Tensor guarded_loss(Run& run, const Tensor& loss) {
  if (!loss.defined() || !looks_at_steps(run) || !loss.is_cpu() || loss.numel() != 1 || loss.is_complex() ||
      std::isfinite(cpu_number(loss))) [[likely]]
    return loss;
  run.finite.bad_loss = true;
  return run.fabric->world_size() > 1 ? loss * std::numeric_limits<double>::quiet_NaN() : loss;
}

bool refuses_gradients(Run& run, Optimizer& optimizer) {
  auto& guard = run.finite;
  if (!looks_at_steps(run)) return false;
  bool bad = guard.bad_loss;
  for (size_t group = 0; group < optimizer.num_groups() && !bad; ++group)
    for (const auto& param : optimizer.params(group)) {
      const auto& gradient = param.grad();
      if (gradient.defined() && !optim::all_finite({&gradient, 1})) {
        bad = true;
        break;
      }
    }
  // Where ranks see the gradients of their shards only, others may have seen what this one has not.
  if (run.fabric->world_size() > 1 && run.fabric->strategy().shards())
    bad = run.fabric->all_reduce(at::scalar_tensor(bad ? 1.0 : 0.0).to(run.fabric->device()), "max").item<float>() != 0;
  if (!bad) return false;
  guard.bad = true;
  guard.comes_again = run.plan.on_nonfinite == NonFinitePolicy::kStop;
  optimizer.zero_grad();
  return true;
}

void begin_watch(Run& run) {
  run.loss_watch = LossWatch(run.plan.on_nonfinite == NonFinitePolicy::kWarn, *run.fabric);
  run.finite = {};
  // Where gradients are looked at they tell the other ranks of a loss of this one.
  if (acts(run) && !(looks_at_steps(run) && run.model.module->automatic_optimization)) run.loss_watch.share();
}

void check_finite(Run& run) {
  const auto& progress = run.state.progress;
  if (run.finite.bad) {
    act_on(run, progress.epoch, progress.batch, run.finite.bad_loss ? "the loss is" : "the gradients are",
           "the step was not made");
    run.finite = {};
    return;
  }
  if (!acts(run)) return;
  // Gradients of a window that is open are of weights that are not good: it ends first.
  if (run.plan.on_nonfinite == NonFinitePolicy::kRollback && run.state.window_open) return;
  const auto bad = run.loss_watch.first_bad();
  if (!bad) return;
  // Another rank cannot know of a loss of this one on the CPU; its gradients tell it at the end of the window.
  if (run.fabric->world_size() > 1 && looks_at_steps(run) && run.model.module->automatic_optimization) return;
  act_on(run, bad->epoch, bad->batch, "the loss is", "no checkpoint with weights that are nan or inf was written");
}

}  // namespace levin::detail
