// Epochs and their batches. The order of hooks is Lightning's; docs/trainer.md lists it.
#include <cmath>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/trainer/defaults.h"
#include "levin/trainer/loops/together.h"
#include "levin/trainer/run.h"

namespace levin::detail {
namespace {

using Clock = std::chrono::steady_clock;

bool epochs_are_done(const Run& run) {
  return run.plan_.max_epochs >= 0 && run.progress_.epoch >= run.plan_.max_epochs;
}

bool fit_is_done(const Run& run) {
  return epochs_are_done(run) || run.steps_are_done() || (run.should_stop_ && run.can_stop_early());
}

/// A checkpoint was written inside the last epoch, after its last optimizer step: what is left is the end of the epoch.
bool epoch_is_open(const Run& run) {
  const auto& progress = run.progress_;
  return progress.closing_epoch ||
         (progress.batch > 0 && progress.global_step == run.plan_.max_steps && !epochs_are_done(run));
}

bool validates_in_epoch(const Run& run) {
  if (run.val_data_.loaders.empty() || run.plan_.limit_val.is_zero()) return false;
  const auto every = run.plan_.check_val_every_n_epoch;
  return !every || (run.progress_.epoch + 1) % *every == 0;
}

/// Whether validation follows the batch that was just done.
bool validation_is_due(const Run& run) {
  if (run.progress_.validated_at == run.progress_.total_batches || !validates_in_epoch(run)) return false;
  if (run.should_stop_ && run.can_stop_early()) return true;
  switch (run.plan_.val_check.unit()) {
    case Interval::Unit::kSteps:
      return run.batch_stepped_ && run.progress_.global_step % run.plan_.val_check.count() == 0;
    case Interval::Unit::kTime: {
      const std::chrono::duration<double> since = Clock::now() - run.last_validation_;
      // Ranks have their own clocks: rank 0's counts.
      const bool due = since.count() >= run.plan_.val_check.seconds();
      return run.fabric_->world_size() > 1 ? run.fabric_->broadcast(static_cast<int64_t>(due)) != 0 : due;
    }
    default:
      break;
  }
  if (run.val_every_ == 0) return run.is_last_batch_;  // a loader that does not know its length
  const int64_t count = run.plan_.check_val_every_n_epoch ? run.progress_.batch : run.progress_.total_batches;
  return count % run.val_every_ == 0;
}

void validate_if_due(Run& run) {
  if (!validation_is_due(run)) return;
  auto& module = run.module();
  if (run.batch_stepped_) module.on_validation_model_zero_grad();
  {
    const auto time = run.span(Run::Action::kValidation);
    run_eval_loop(run, Stage::kValidate);
  }
  run.last_validation_ = Clock::now();
  agree_to_stop(run);
}

void after_batch(Run& run) {
  validate_if_due(run);
  if (!run.batch_stepped_) return;
  // The count of batches is that of the batch just done.
  --run.progress_.batch;
  step_schedulers(run, "step", /*plateau=*/true);
  ++run.progress_.batch;
}

/// The batches of an epoch. Returns when the epoch is over, or the run.
void run_batches(Run& run) {
  auto& module = run.module();
  auto& source = *run.train_data_.loaders.front();
  auto& progress = run.progress_;
  const auto batches = run.train_data_.batches.front();
  StepOutput output;

  run.is_last_batch_ = batches && progress.batch >= *batches;
  // What a checkpoint cut off: the validation after its last batch, and what follows it. A run that ended here has done
  // that.
  if (progress.batch > 0 && !std::exchange(progress.epoch_cut, false)) after_batch(run);
  while (true) {
    if (batches && progress.batch >= *batches) break;
    if (run.steps_are_done() || (run.should_stop_ && run.can_stop_early())) {
      progress.epoch_cut = !run.is_last_batch_;
      if (run.should_stop_) note_stop(run);
      break;
    }
    const StepInfo at{progress.batch, 0};
    note_batch(run, "train_dataloader", at.batch_idx, batches);
    run.advice_.before_fetch(run);
    void* batch = run.next_batch(source, at);
    if (!batch) {
      note_end(run, "train_dataloader", progress.batch);
      break;
    }
    run.advice_.after_fetch();
    const auto time = run.span(Run::Action::kBatch);
    run.is_last_batch_ = (batches && progress.batch + 1 >= *batches) || (!source.size() && source.is_last());
    run.inside_batch_ = true;
    run.batch_ = source.any(batch);
    run.train_log_.start_batch();
    run.call(Hook::kTrainBatchStart, [&](Callback& c) { c.on_train_batch_start(run, run.batch_, at.batch_idx); });
    bool wanted = true;
    run.call_module(Hook::kTrainBatchStart, [&] { wanted = module.any_train_batch_start(batch, at.batch_idx); });
    if (!wanted) {
      run.inside_batch_ = false;
      run.batch_ = AnyBatch();
      // The epoch ends here, and schedulers that count epochs count it.
      run.is_last_batch_ = true;
      step_schedulers(run, "epoch", /*plateau=*/false);
      break;
    }
    run.batch_stepped_ = run_training_batch(run, batch, at.batch_idx, output);
    if (!run.plan_.barebones) run.loss_watch_.add(output.loss, progress.epoch, at.batch_idx);
    run.window_open_ = !run.batch_stepped_ && run.accumulate_ > 1 && !run.is_last_batch_;

    if (run.batch_stepped_) step_schedulers(run, "step", /*plateau=*/false);
    if (run.is_last_batch_) step_schedulers(run, "epoch", /*plateau=*/false);
    run.call(Hook::kTrainBatchEnd, [&](Callback& c) { c.on_train_batch_end(run, output, run.batch_, at.batch_idx); });
    run.call_module(Hook::kTrainBatchEnd, [&] { module.any_train_batch_end(output, batch, at.batch_idx); });
    run.set_site(kNoLogging);
    if (run.batch_stepped_) run.log_step_row();
    run.batch_ = AnyBatch();
    output = StepOutput();

    ++progress.batch;
    ++progress.total_batches;
    if (run.batch_stepped_) ++progress.stepped_batches;
    run.inside_batch_ = false;
    run.at_.reset();
    run.write_waiting_checkpoints();
    run.check_stop_requests();
    after_batch(run);
  }
  source.finish();
  check_same_end(run);
  run.at_.reset();
  // A window that the end of the run cut off is given up: the next epoch would begin with empty gradients.
  run.window_open_ = false;
  run.write_waiting_checkpoints();
}

void close_epoch(Run& run) {
  run.loss_watch_.end_epoch(run.progress_.epoch, run.module().automatic_optimization && !run.optimizers_.empty());
  if (run.is_last_batch_) step_schedulers(run, "epoch", /*plateau=*/true);
  run.log_epoch_row();
  run.in_epoch_end_ = false;
  run.train_log_.reset();
  run.progress_.closing_epoch = run.progress_.epoch_cut = false;
  ++run.progress_.epoch;
  run.progress_.batch = 0;
}

void run_epoch(Run& run, bool resumed) {
  const auto time = run.span(Run::Action::kEpoch);
  auto& module = run.module();
  auto& progress = run.progress_;
  if (progress.closing_epoch) {
    run.is_last_batch_ = !progress.epoch_cut;
    run.in_epoch_end_ = true;
    close_epoch(run);
    return;
  }
  const auto every = run.plan_.reload_every_n_epochs;
  if (every > 0 && progress.epoch > 0 && progress.epoch % every == 0 && !resumed) {
    run.train_data_.ready = run.val_data_.ready = false;
    run.load_train_data();
    run.load_eval_data(Stage::kValidate);
  }
  check_lengths(run, "trainer.fit", run.train_data_);
  run.train_data_.loaders.front()->start(progress.epoch);
  if (progress.batch == 0) {
    run.call(
        Hook::kTrainEpochStart, [&](Callback& c) { c.on_train_epoch_start(run); },
        [&] { module.on_train_epoch_start(); });
  }
  run_batches(run);

  run.in_epoch_end_ = true;
  progress.closing_epoch = true;
  const auto at_end = [&](bool monitors) {
    for (size_t i = 0; i < run.listeners_.size(); ++i) {
      const auto order = run.listeners_[i]->order();
      if ((order == CallbackOrder::kMonitor || order == CallbackOrder::kCheckpoint) != monitors) continue;
      run.call_one(Hook::kTrainEpochEnd, i, [&](Callback& c) { c.on_train_epoch_end(run); });
    }
  };
  at_end(false);
  run.call_module(Hook::kTrainEpochEnd, [&] { module.on_train_epoch_end(); });
  at_end(true);
  run.set_site(kNoLogging);
  close_epoch(run);
  agree_to_stop(run);
  run.check_stop_requests();
}

void sanity_check(Run& run) {
  const auto& plan = run.plan_;
  if (plan.sanity_steps == 0 || plan.limit_val.is_zero()) return;
  run.load_eval_data(Stage::kValidate);
  if (run.val_data_.loaders.empty()) return;
  const IsolateRng isolate;
  run.stage_ = Stage::kSanity;
  run.call(Hook::kSanityCheckStart, [&](Callback& c) { c.on_sanity_check_start(run); });
  run_eval_loop(run, Stage::kSanity, plan.sanity_steps);
  run.call(Hook::kSanityCheckEnd, [&](Callback& c) { c.on_sanity_check_end(run); });
  run.val_log_.clear();
  run.published_ = {};
  run.stage_ = Stage::kTrain;
}

}  // namespace

void run_fit_loop(Run& run) {
  auto& module = run.module();
  auto& progress = run.progress_;
  const bool resumed = run.loaded_.has_value();
  if (!resumed && !fit_is_done(run) && !run.plan_.limit_train.is_zero()) sanity_check(run);
  run.stage_ = Stage::kTrain;
  // A run that is to go further than the one before goes on where that one stopped, not with the next epoch.
  if (progress.epoch_cut && !fit_is_done(run)) progress.closing_epoch = false;
  if ((fit_is_done(run) && !epoch_is_open(run)) || run.plan_.limit_train.is_zero()) return;
  run.load_train_data();
  if (!run.plan_.limit_val.is_zero()) run.load_eval_data(Stage::kValidate);

  run.last_validation_ = Clock::now();
  tell_totals(run.loggers_, std::max<int64_t>(run.plan_.max_epochs, 0), run.num_training_batches().value_or(0));
  run.call(
      Hook::kTrainStart, [&](Callback& c) { c.on_train_start(run); }, [&] { module.on_train_start(); });
  // After everything that may draw random numbers.
  if (resumed) run.restore_position();
  bool first = resumed;
  while (!fit_is_done(run) || epoch_is_open(run)) {
    run_epoch(run, std::exchange(first, false));
  }
  run.call(
      Hook::kTrainEnd, [&](Callback& c) { c.on_train_end(run); }, [&] { module.on_train_end(); });
  run.set_site(kNoLogging);
}

}  // namespace levin::detail
