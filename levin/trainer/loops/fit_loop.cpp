// Epochs and their batches. The order of hooks is Lightning's; docs/trainer.md lists it.
#include <cmath>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/trainer/defaults.h"
#include "levin/trainer/loops/loops.h"
#include "levin/trainer/loops/together.h"
#include "levin/trainer/run/call.h"
#include "levin/trainer/run/profiling.h"
#include "levin/trainer/run/run.h"
#include "levin/trainer/run/step.h"

namespace levin::detail {
namespace {

using Clock = std::chrono::steady_clock;

bool epochs_are_done(const Run& run) {
  return run.plan.max_epochs >= 0 && run.state.progress.epoch >= run.plan.max_epochs;
}

bool fit_is_done(const Run& run) {
  return epochs_are_done(run) || steps_are_done(run) || stops_now(run);
}

/// A checkpoint was written inside the last epoch, after its last optimizer step: what is left is the end of the epoch.
bool epoch_is_open(const Run& run) {
  const auto& progress = run.state.progress;
  return progress.closing_epoch ||
         (progress.batch > 0 && progress.global_step == run.plan.max_steps && !epochs_are_done(run));
}

bool validates_in_epoch(const Run& run) {
  if (run.data.val.loaders.empty() || run.plan.limit_val.is_zero()) return false;
  const auto every = run.plan.check_val_every_n_epoch;
  return !every || (run.state.progress.epoch + 1) % *every == 0;
}

/// Whether validation follows the batch that was just done.
bool validation_is_due(const Run& run) {
  if (run.state.progress.validated_at == run.state.progress.total_batches || !validates_in_epoch(run)) return false;
  if (stops_now(run)) return true;
  switch (run.plan.val_check.unit()) {
    case Interval::Unit::kSteps:
      return run.state.batch_stepped && run.state.progress.global_step % run.plan.val_check.count() == 0;
    case Interval::Unit::kTime: {
      const std::chrono::duration<double> since = Clock::now() - run.state.last_validation;
      // Ranks have their own clocks: rank 0's counts.
      const bool due = since.count() >= run.plan.val_check.seconds();
      return run.fabric->world_size() > 1 ? run.fabric->broadcast(static_cast<int64_t>(due)) != 0 : due;
    }
    case Interval::Unit::kFraction:
    case Interval::Unit::kBatches:
      break;
  }
  if (run.data.val_every == 0) return run.state.is_last_batch;  // a loader that does not know its length
  if (!run.plan.check_val_every_n_epoch) return run.state.progress.total_batches % run.data.val_every == 0;
  // An epoch that was resumed between two batches may end one earlier, with the validation of its last.
  const bool ends = run.state.is_last_batch && run.data.train.loaders.front()->size();
  const int64_t count = ends ? *run.data.train.batches.front() : run.state.progress.batch;
  return count % run.data.val_every == 0;
}

void validate_if_due(Run& run) {
  if (!validation_is_due(run)) return;
  auto& module = *run.model.module;
  end_profiled_step(run);
  if (run.state.batch_stepped) module.on_validation_model_zero_grad();
  {
    const auto time = run.hooks.span(Action::kValidation);
    run_eval_loop(run, Stage::kValidate);
  }
  run.state.last_validation = Clock::now();
  agree_to_stop(run);
}

void after_batch(Run& run) {
  validate_if_due(run);
  if (!run.state.batch_stepped) return;
  step_schedulers(run, "step", /*plateau=*/true, run.state.progress.batch);
}

/// Batches of the epoch under way. One that resumes between two batches of these ranks may have one less.
std::optional<int64_t> batches_of_epoch(const Run& run) {
  auto batches = run.data.train.batches.front();
  const auto size = run.data.train.loaders.front()->size();
  if (batches && size) batches = std::min(*batches, *size);
  return batches;
}

/// The batches of an epoch. Returns when the epoch is over, or the run.
void run_batches(Run& run) {
  auto& module = *run.model.module;
  auto& source = *run.data.train.loaders.front();
  auto& state = run.state;
  auto& progress = state.progress;
  const auto batches = batches_of_epoch(run);
  StepOutput output;

  // Where the last batch was done already the epoch is over, also for a loader that does not know its size.
  const bool is_over = progress.batch > 0 && state.batches_done;
  state.is_last_batch = is_over || (batches && progress.batch >= *batches);
  // Batches of another size may have no last one left.
  if (state.is_last_batch && !is_over) step_schedulers(run, "epoch", /*plateau=*/false, progress.epoch + 1);
  // What a checkpoint cut off: the validation after its last batch, and what follows it. A run that ended here has done
  // that.
  if (progress.batch > 0 && !std::exchange(progress.epoch_cut, false)) after_batch(run);
  while (!is_over) {
    if (batches && progress.batch >= *batches) break;
    if (steps_are_done(run) || stops_now(run)) {
      progress.epoch_cut = !state.is_last_batch;
      if (state.should_stop) note_stop(run);
      break;
    }
    const StepInfo at{progress.batch, 0};
    note_batch(run, "train_dataloader", at.batch_idx, batches);
    begin_profiled_step(run);
    run.advice.before_fetch(run);
    const auto batch = next_batch(run, source, at);
    if (batch.empty()) {
      note_end(run, "train_dataloader", progress.batch);
      break;
    }
    run.advice.after_fetch();
    predict_profiled_memory(run, batch);
    const auto time = run.hooks.span(Action::kBatch);
    state.is_last_batch = (batches && progress.batch + 1 >= *batches) || (!source.size() && source.is_last());
    state.enter_batch(batch);
    run.metrics.train.start_batch();
    call_callbacks<Hook::on_train_batch_start>(run, batch, at.batch_idx);
    bool wanted = true;
    call_module(run, Hook::on_train_batch_start, [&] { wanted = module.any_batch_start(Stage::kTrain, batch, at); });
    if (!wanted) {
      state.leave_batch();
      // The epoch ends here, and schedulers that count epochs count it.
      state.is_last_batch = true;
      step_schedulers(run, "epoch", /*plateau=*/false, progress.epoch + 1);
      break;
    }
    state.batch_stepped = run_training_batch(run, batch, at.batch_idx, output);
    if (!run.plan.barebones) run.loss_watch.add(output.loss, progress.epoch, at.batch_idx);

    if (state.batch_stepped) step_schedulers(run, "step", /*plateau=*/false, progress.batch + 1);
    // A step that comes again brings the end of the epoch with it.
    if (state.is_last_batch && !run.finite.comes_again)
      step_schedulers(run, "epoch", /*plateau=*/false, progress.epoch + 1);
    call_callbacks<Hook::on_train_batch_end>(run, output, batch, at.batch_idx);
    call_module(run, Hook::on_train_batch_end, [&] { module.any_batch_end(Stage::kTrain, output, batch, at); });
    check_finite(run);
    state.place.set_site(kNoLogging);
    if (state.batch_stepped) log_step_row(run);
    output = StepOutput();

    ++progress.batch;
    ++progress.total_batches;
    state.batches_done = state.is_last_batch;
    if (state.batch_stepped) ++progress.stepped_batches;
    state.leave_batch();
    write_waiting_checkpoints(run);
    check_stop_requests(run);
    after_batch(run);
    end_profiled_step(run);
  }
  end_profiled_step(run);
  source.finish();
  check_same_end(run);
  state.place.at.reset();
  // A window that the end of the run cut off is given up: the next epoch would begin with empty gradients.
  state.window_open = false;
  write_waiting_checkpoints(run);
}

void close_epoch(Run& run) {
  auto& state = run.state;
  const bool trains = run.model.module->automatic_optimization && !run.model.optimizers.empty();
  run.loss_watch.end_epoch(state.progress.epoch, trains);
  check_finite(run);
  if (auto* scaler = run.fabric->grad_scaler(); scaler && run.plan.on_nonfinite == NonFinitePolicy::kSkip)
    if (const auto skipped = scaler->take_skipped_steps(); skipped > 0)
      log_warning(concat("[trainer] ", skipped, " steps of epoch ", state.progress.epoch,
                         " were left out: their loss or gradients were nan or inf"));
  if (state.is_last_batch) step_schedulers(run, "epoch", /*plateau=*/true, state.progress.epoch + 1);
  log_epoch_row(run);
  run.metrics.train.reset();
  state.in_epoch_end = state.batches_done = state.progress.closing_epoch = state.progress.epoch_cut = false;
  ++state.progress.epoch;
  state.progress.batch = 0;
}

void run_epoch(Run& run, bool resumed) {
  const auto time = run.hooks.span(Action::kEpoch);
  auto& progress = run.state.progress;
  if (progress.closing_epoch) {
    run.state.is_last_batch = !progress.epoch_cut;
    run.state.in_epoch_end = true;
    close_epoch(run);
    return;
  }
  const auto every = run.plan.reload_every_n_epochs;
  if (every > 0 && progress.epoch > 0 && progress.epoch % every == 0 && !resumed) {
    run.data.train.ready = run.data.val.ready = false;
    load_train_data(run);
    load_eval_data(run, Stage::kValidate);
  }
  check_lengths(run, "trainer.fit", run.data.train);
  run.data.train.loaders.front()->start(progress.epoch);
  if (progress.batch == 0) {
    call<Hook::on_train_epoch_start>(run);
  }
  run_batches(run);

  run.state.in_epoch_end = true;
  progress.closing_epoch = true;
  const auto at_end = [&](bool monitors) {
    for (size_t i = 0; i < run.hooks.size(); ++i) {
      const auto order = run.hooks[i].order();
      if ((order == CallbackOrder::kMonitor || order == CallbackOrder::kCheckpoint) != monitors) continue;
      call_one<Hook::on_train_epoch_end>(run, i);
    }
  };
  at_end(false);
  call_module<Hook::on_train_epoch_end>(run);
  at_end(true);
  run.state.place.set_site(kNoLogging);
  close_epoch(run);
  agree_to_stop(run);
  check_stop_requests(run);
}

void sanity_check(Run& run) {
  const auto& plan = run.plan;
  if (plan.sanity_steps == 0 || plan.limit_val.is_zero()) return;
  load_eval_data(run, Stage::kValidate);
  if (run.data.val.loaders.empty()) return;
  const IsolateRng isolate;
  run.state.stage = Stage::kSanity;
  call<Hook::on_sanity_check_start>(run);
  run_eval_loop(run, Stage::kSanity, plan.sanity_steps);
  call<Hook::on_sanity_check_end>(run);
  run.metrics.val.clear();
  run.metrics.published = {};
  run.state.stage = Stage::kTrain;
}

}  // namespace

void run_fit_loop(Run& run) {
  auto& progress = run.state.progress;
  const bool resumed = run.checkpoints.loaded.has_value();
  if (!resumed && !fit_is_done(run) && !run.plan.limit_train.is_zero()) sanity_check(run);
  run.state.stage = Stage::kTrain;
  // A run that is to go further than the one before resumes where that one stopped, not with the next epoch.
  if (progress.epoch_cut && !fit_is_done(run)) progress.closing_epoch = false;
  if ((fit_is_done(run) && !epoch_is_open(run)) || run.plan.limit_train.is_zero()) return;
  load_train_data(run);
  if (!run.plan.limit_val.is_zero()) load_eval_data(run, Stage::kValidate);

  run.state.last_validation = Clock::now();
  tell_totals(run.logs.loggers, std::max<int64_t>(run.plan.max_epochs, 0), run.data.train.batches.front().value_or(0));
  call<Hook::on_train_start>(run);
  // After everything that may draw random numbers.
  if (resumed) restore_position(run);
  bool first = resumed;
  const ProfiledLoop profiled(run);
  while (!fit_is_done(run) || epoch_is_open(run)) {
    run_epoch(run, std::exchange(first, false));
  }
  call<Hook::on_train_end>(run);
  run.state.place.set_site(kNoLogging);
}

}  // namespace levin::detail
