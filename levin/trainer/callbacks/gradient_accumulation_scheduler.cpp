#include "levin/trainer/callbacks/gradient_accumulation_scheduler.h"

#include <iterator>

#include "levin/core/error.h"
#include "levin/trainer/context.h"
#include "levin/trainer/train_module.h"

namespace levin {

GradientAccumulationScheduler::GradientAccumulationScheduler(GradientAccumulationSchedulerOptions options)
    : scheduling_(std::move(options.scheduling)) {
  LEVIN_CHECK(!scheduling_.empty(),
              "[GradientAccumulationScheduler] scheduling is empty; {{4, 2}} would accumulate "
              "2 batches from epoch 4 on");
  for (const auto& [epoch, batches] : scheduling_) {
    LEVIN_CHECK(epoch >= 0, "[GradientAccumulationScheduler] epoch ", epoch, " in scheduling; they count from 0");
    LEVIN_CHECK(batches >= 1, "[GradientAccumulationScheduler] ", batches, " batches from epoch ", epoch,
                " on; 1 or more is needed");
  }
}

int64_t GradientAccumulationScheduler::accumulate_grad_batches(int64_t epoch) const {
  const auto after = scheduling_.upper_bound(epoch);
  return after == scheduling_.begin() ? 1 : std::prev(after)->second;
}

int64_t GradientAccumulationScheduler::stepping_batches(int64_t epochs, int64_t batches) const {
  int64_t steps = 0, begin = 0, size = 1;
  const auto add_until = [&](int64_t epoch) {
    steps += (epoch - begin) * ((batches + size - 1) / size);
    begin = epoch;
  };
  for (const auto& [epoch, accumulate] : scheduling_) {
    if (epoch >= epochs) break;
    add_until(epoch);
    size = accumulate;
  }
  add_until(epochs);
  return steps;
}

void GradientAccumulationScheduler::on_fit_start(TrainerContext& run) {
  LEVIN_CHECK(run.module().automatic_optimization,
              "[GradientAccumulationScheduler] the module optimizes manually and decides itself when to step");
  LEVIN_CHECK(run.plan().accumulate == 1, "[GradientAccumulationScheduler] accumulate_grad_batches is ",
              run.plan().accumulate, "; leave it at 1, or leave the callback out");
}

void GradientAccumulationScheduler::on_train_start(TrainerContext& run) {
  // A run that resumes inside an epoch does not start that epoch again.
  run.tuning().set_accumulate_grad_batches(accumulate_grad_batches(run.current_epoch()));
}

void GradientAccumulationScheduler::on_train_epoch_start(TrainerContext& run) {
  run.tuning().set_accumulate_grad_batches(accumulate_grad_batches(run.current_epoch()));
}

}  // namespace levin
