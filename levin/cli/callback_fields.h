#pragma once

#include "levin/cli/codecs.h"
#include "levin/config/fields.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/callbacks/checkpointing/on_exception_checkpoint.h"
#include "levin/trainer/callbacks/device_stats_monitor.h"
#include "levin/trainer/callbacks/early_stopping.h"
#include "levin/trainer/callbacks/finetuning.h"
#include "levin/trainer/callbacks/gradient_accumulation_scheduler.h"
#include "levin/trainer/callbacks/lr_monitor.h"
#include "levin/trainer/callbacks/memory_report.h"
#include "levin/trainer/callbacks/model_pruning.h"
#include "levin/trainer/callbacks/model_summary.h"
#include "levin/trainer/callbacks/prediction_writer.h"
#include "levin/trainer/callbacks/progress_bar.h"
#include "levin/trainer/callbacks/spike_detection.h"
#include "levin/trainer/callbacks/stochastic_weight_averaging.h"
#include "levin/trainer/callbacks/throughput_monitor.h"
#include "levin/trainer/callbacks/timer.h"
#include "levin/trainer/callbacks/tuning/batch_size_finder.h"
#include "levin/trainer/callbacks/tuning/lr_finder.h"
#include "levin/trainer/callbacks/weight_averaging.h"
#include "levin/trainer/trainer_fields.h"

// What the options of callbacks are called in words. Functions and clocks are for programs.
namespace levin {

inline constexpr const char* kMode = "which of the metric is best";
inline constexpr const char* kVerbose = "say what it does";
inline constexpr const char* kDirpath = "the folder; by itself \"checkpoints\" beside the logs";

void fields(EarlyStoppingOptions& o, auto f) {
  f("monitor", o.monitor, "the metric to follow; must be given");
  f("min_delta", o.min_delta, "a change that is not larger is no improvement");
  f("patience", o.patience, "so many checks in a row without an improvement end the run");
  f("verbose", o.verbose, kVerbose);
  f("mode", o.mode, kMode, {"min", "max"});
  f("strict", o.strict, "a missing metric is an error");
  f("check_finite", o.check_finite, "a value that is nan or infinite ends the run");
  f("stopping_threshold", o.stopping_threshold, "a better value ends the run");
  f("divergence_threshold", o.divergence_threshold, "a worse value ends the run");
  f("check_on_train_epoch_end", o.check_on_train_epoch_end, "look after training, not after validation");
  f("log_rank_zero_only", o.log_rank_zero_only, "only rank 0 speaks");
}

void fields(ModelCheckpointOptions& o, auto f) {
  f("dirpath", o.dirpath, kDirpath);
  f("filename", o.filename, "a pattern such as {epoch}-{val_loss:.2f}");
  f("monitor", o.monitor, "the metric that says which are best; by itself the newest are");
  f("verbose", o.verbose, kVerbose);
  f("save_last", o.save_last, "keep the newest as last.ckpt too");
  f("save_top_k", o.save_top_k, "how many are kept; -1 all");
  f("save_on_exception", o.save_on_exception, "keep the state when an exception ends the run");
  f("save_weights_only", o.save_weights_only, "nothing to go on training from");
  f("mode", o.mode, kMode, {"min", "max"});
  f("auto_insert_metric_name", o.auto_insert_metric_name, "{epoch} becomes epoch=3, else 3");
  f("every_n_train_steps", o.every_n_train_steps, "optimizer steps between two");
  f("train_time_interval", o.train_time_interval, "time between two");
  f("every_n_epochs", o.every_n_epochs, "epochs between two");
  f("save_on_train_epoch_end", o.save_on_train_epoch_end, "after training, not after validation");
  f("enable_version_counter", o.enable_version_counter, "a name that is taken gets -v1, -v2");
}

void fields(OnExceptionCheckpointOptions& o, auto f) {
  f("dirpath", o.dirpath, kDirpath);
  f("filename", o.filename, "without .ckpt");
}

void fields(GradientAccumulationSchedulerOptions& o, auto f) {
  f("scheduling", o.scheduling, "epochs and over how many batches each accumulates: 0:8,4:4");
}

void fields(ModelSummaryOptions& o, auto f) {
  f("max_depth", o.max_depth, "how deep modules are listed; -1 everything");
}

void fields(TrainerProgressBarOptions& o, auto f) {
  f("refresh_rate", o.refresh_rate, "batches between two looks whether a drawing is due; 0: no bar");
  f("leave", o.leave, "finished bars stay on the terminal");
  f("live", o.live, "one line that is redrawn, or plain lines");
}

void fields(TimerOptions& o, auto f) {
  f("duration", o.duration, "the run ends then; by itself it is only measured");
  f("interval", o.interval, "when it looks", {"step", "epoch"});
  f("verbose", o.verbose, kVerbose);
}

void fields(SafetensorsPredictionWriterOptions& o, auto f) {
  f("output_dir", o.output_dir, "the folder; must be given");
  f("write_interval", o.write_interval, "a file for each batch, or one for each rank", {"batch", "epoch"});
}

void fields(LearningRateMonitorOptions& o, auto f) {
  f("logging_interval", o.logging_interval, "when; by itself as often as each scheduler steps", {"step", "epoch"});
  f("log_momentum", o.log_momentum, "momentum or beta1 too");
  f("log_weight_decay", o.log_weight_decay, "weight decay too");
}

void fields(LearningRateFinderOptions& o, auto f) {
  f("min_lr", o.min_lr, "the learning rate to begin with");
  f("max_lr", o.max_lr, "the one to end with");
  f("num_training_steps", o.num_training_steps, "optimizer steps from the one to the other");
  f("mode", o.mode, "how it rises", {"exponential", "linear"});
  f("early_stop_threshold", o.early_stop_threshold, "ends when the loss is that many times the best; null: never");
  f("update_attr", o.update_attr, "train with what was found");
  f("attr_name", o.attr_name, "its name among the hyperparameters");
}

void fields(BatchSizeFinderOptions& o, auto f) {
  f("mode", o.mode, "doubled until memory runs out, or searched between the last two", {"power", "binsearch"});
  f("steps_per_trial", o.steps_per_trial, "optimizer steps with each size");
  f("init_val", o.init_val, "the size to begin with");
  f("max_trials", o.max_trials, "sizes to try at most");
  f("margin", o.margin, "share that is taken off in the end; binsearch alone");
  f("max_val", o.max_val, "never more than that");
}

void fields(DeviceStatsMonitorOptions& o, auto f) {
  f("cpu_stats", o.cpu_stats, "processors and memory of the machine too");
}

void fields(ThroughputMonitorOptions& o, auto f) {
  f("window_size", o.window_size, "batches that the rates are taken over");
  f("flops_per_batch", o.flops_per_batch, "of one device; by itself counted in the first batch");
  f("available_flops", o.available_flops, "FLOP/s that the device could do; by itself from a table");
}

void fields(MemoryReportOptions& o, auto f) {
  f("step", o.step, "the optimizer step that is measured, from 1");
  f("picture", o.picture, "memory.png in the folder of the run");
}

void fields(SpikeDetectionOptions& o, auto f) {
  f("mode", o.mode, "min: a rising loss is a spike; max: a falling one", {"min", "max"});
  f("window", o.window, "losses in the running mean");
  f("warmup", o.warmup, "batches of an epoch before which nothing is a spike");
  f("atol", o.atol, "a spike is at least so far from the mean");
  f("rtol", o.rtol, "and at least so many times the mean away");
  f("exclude_batches_path", o.exclude_batches_path, "the file of batches to leave out");
  f("finite_only", o.finite_only, "a loss that is nan or infinite is a spike too");
}

void fields(StochasticWeightAveragingOptions& o, auto f) {
  f("swa_lrs", o.swa_lrs, "the learning rate while weights are averaged; must be given");
  f("swa_epoch_start", o.swa_epoch_start, "the epoch it starts with, from 1, or a share of max_epochs");
  f("annealing_epochs", o.annealing_epochs, "epochs on the way to swa_lrs");
  f("annealing_strategy", o.annealing_strategy, "the form of the way", {"cos", "linear"});
  f("device", o.device, "where the average is kept; null: beside the weights");
}

void fields(WeightAveragingOptions& o, auto f) {
  f("device", o.device, "where the average is kept; null: beside the weights");
  f("use_buffers", o.use_buffers, "average buffers too");
}

void fields(EMAWeightAveragingOptions& o, auto f) {
  f("device", o.device, "where the average is kept; null: beside the weights");
  f("use_buffers", o.use_buffers, "average buffers too");
  f("decay", o.decay, "share of the average that stays in each update");
  f("update_every_n_steps", o.update_every_n_steps, "optimizer steps between two updates; 0: not by steps");
  f("update_starting_at_step", o.update_starting_at_step, "no update before");
  f("update_starting_at_epoch", o.update_starting_at_epoch, "update after every epoch from this one on");
}

void fields(ModelPruningOptions& o, auto f) {
  f("pruning_fn", o.pruning_fn, "the smallest weights, or any", {"l1_unstructured", "random_unstructured"});
  f("parameters_to_prune", o.parameters_to_prune, "by name; by itself all of parameter_names");
  f("parameter_names", o.parameter_names, "last names of those that are pruned");
  f("use_global_unstructured", o.use_global_unstructured, "choose among all weights together");
  f("amount", o.amount, "how many, or which share");
  f("apply_pruning", o.apply_pruning, "whether it prunes at all");
  f("make_pruning_permanent", o.make_pruning_permanent, "forget what was pruned when training ends");
  f("use_lottery_ticket_hypothesis", o.use_lottery_ticket_hypothesis, "what is left goes back to its first values");
  f("verbose", o.verbose, "1: say the sparsity; 2: of each parameter too");
  f("prune_on_train_epoch_end", o.prune_on_train_epoch_end, "after training, not after validation");
}

void fields(BackboneFinetuningOptions& o, auto f) {
  f("unfreeze_backbone_at_epoch", o.unfreeze_backbone_at_epoch, "the epoch in which the backbone begins to train");
  f("backbone_initial_ratio_lr", o.backbone_initial_ratio_lr, "its first learning rate, as a share of the rest's");
  f("backbone_initial_lr", o.backbone_initial_lr, "the same as a number");
  f("should_align", o.should_align, "stays with the rest's learning rate once it reaches it");
  f("train_bn", o.train_bn, "train its batch norm layers too");
  f("verbose", o.verbose, kVerbose);
  f("backbone", o.backbone, "the child of the model that is the backbone");
}

}  // namespace levin
