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

// The options of callbacks by name. Functions and clocks cannot be set by name.
namespace levin {

inline constexpr const char* kMode = "whether the metric should be low or high";
inline constexpr const char* kVerbose = "print what it does";
inline constexpr const char* kDirpath = "folder for checkpoints; default: \"checkpoints\" next to the logs";

void fields(EarlyStoppingOptions& o, auto f) {
  f("monitor", o.monitor, "metric to monitor; required");
  f("min_delta", o.min_delta, "minimum change that counts as an improvement");
  f("patience", o.patience, "checks without improvement after which training stops");
  f("verbose", o.verbose, kVerbose);
  f("mode", o.mode, kMode, {"min", "max"});
  f("strict", o.strict, "a missing metric is an error");
  f("check_finite", o.check_finite, "stop when the metric is NaN or infinite");
  f("stopping_threshold", o.stopping_threshold, "stop once the metric is better than this");
  f("divergence_threshold", o.divergence_threshold, "stop once the metric is worse than this");
  f("check_on_train_epoch_end", o.check_on_train_epoch_end,
    "check at the end of the training epoch, not of validation");
  f("log_rank_zero_only", o.log_rank_zero_only, "log on rank 0 only");
}

void fields(ModelCheckpointOptions& o, auto f) {
  f("dirpath", o.dirpath, kDirpath);
  f("filename", o.filename, "pattern such as {epoch}-{val_loss:.2f}");
  f("monitor", o.monitor, "metric that ranks checkpoints; default: keep the newest");
  f("verbose", o.verbose, kVerbose);
  f("save_last", o.save_last, "also keep the newest as last.ckpt");
  f("save_top_k", o.save_top_k, "number of checkpoints to keep; -1 keeps all");
  f("save_on_exception", o.save_on_exception, "save a checkpoint when an exception ends the run");
  f("save_weights_only", o.save_weights_only, "save only the weights; training cannot resume from them");
  f("mode", o.mode, kMode, {"min", "max"});
  f("auto_insert_metric_name", o.auto_insert_metric_name, "{epoch} becomes epoch=3, not 3");
  f("every_n_train_steps", o.every_n_train_steps, "optimizer steps between checkpoints");
  f("train_time_interval", o.train_time_interval, "time between checkpoints");
  f("every_n_epochs", o.every_n_epochs, "epochs between checkpoints");
  f("save_on_train_epoch_end", o.save_on_train_epoch_end, "save at the end of the training epoch, not of validation");
  f("enable_version_counter", o.enable_version_counter, "append -v1, -v2, ... to a name that exists");
}

void fields(OnExceptionCheckpointOptions& o, auto f) {
  f("dirpath", o.dirpath, kDirpath);
  f("filename", o.filename, "file name without .ckpt");
}

void fields(GradientAccumulationSchedulerOptions& o, auto f) {
  f("scheduling", o.scheduling, "batches to accumulate from each epoch on: 0:8,4:4");
}

void fields(ModelSummaryOptions& o, auto f) {
  f("max_depth", o.max_depth, "depth of submodules to list; -1 lists all");
}

void fields(TrainerProgressBarOptions& o, auto f) {
  f("refresh_rate", o.refresh_rate, "batches between refreshes; 0 disables the bar");
  f("leave", o.leave, "leave finished bars on the terminal");
  f("live", o.live, "redraw one line; false prints plain lines");
}

void fields(TimerOptions& o, auto f) {
  f("duration", o.duration, "stop training after this time; default: only measure it");
  f("interval", o.interval, "when to check", {"step", "epoch"});
  f("verbose", o.verbose, kVerbose);
}

void fields(SafetensorsPredictionWriterOptions& o, auto f) {
  f("output_dir", o.output_dir, "folder to write to; required");
  f("write_interval", o.write_interval, "one file per batch, or one per rank at the end", {"batch", "epoch"});
}

void fields(LearningRateMonitorOptions& o, auto f) {
  f("logging_interval", o.logging_interval, "when to log; default: whenever a scheduler steps", {"step", "epoch"});
  f("log_momentum", o.log_momentum, "also log momentum or beta1");
  f("log_weight_decay", o.log_weight_decay, "also log weight decay");
}

void fields(LearningRateFinderOptions& o, auto f) {
  f("min_lr", o.min_lr, "lowest learning rate to try");
  f("max_lr", o.max_lr, "highest learning rate to try");
  f("num_training_steps", o.num_training_steps, "learning rates to try");
  f("mode", o.mode, "how the learning rate increases", {"exponential", "linear"});
  f("early_stop_threshold", o.early_stop_threshold, "stop when the loss is this many times the best; null: never");
  f("update_attr", o.update_attr, "set the learning rate that was found");
  f("attr_name", o.attr_name, "hyperparameter that holds the learning rate");
}

void fields(BatchSizeFinderOptions& o, auto f) {
  f("mode", o.mode, "power doubles until out of memory, binsearch then bisects", {"power", "binsearch"});
  f("steps_per_trial", o.steps_per_trial, "optimizer steps per trial");
  f("init_val", o.init_val, "initial batch size");
  f("max_trials", o.max_trials, "maximum number of trials");
  f("margin", o.margin, "fraction subtracted from the result; binsearch only");
  f("max_val", o.max_val, "maximum batch size");
}

void fields(DeviceStatsMonitorOptions& o, auto f) {
  f("cpu_stats", o.cpu_stats, "also log CPU and host memory statistics");
}

void fields(ThroughputMonitorOptions& o, auto f) {
  f("window_size", o.window_size, "batches to average the rates over");
  f("flops_per_batch", o.flops_per_batch, "FLOPs per device and batch; default: counted in the first batch");
  f("available_flops", o.available_flops, "peak FLOP/s of the device; default: from a table");
}

void fields(MemoryReportOptions& o, auto f) {
  f("step", o.step, "optimizer step to measure, from 1");
  f("picture", o.picture, "write memory.png to the log folder");
}

void fields(SpikeDetectionOptions& o, auto f) {
  f("mode", o.mode, "min: a rising loss is a spike; max: a falling one", {"min", "max"});
  f("window", o.window, "losses in the running mean");
  f("warmup", o.warmup, "batches at the start of an epoch that are not checked");
  f("atol", o.atol, "minimum absolute distance of a spike from the mean");
  f("rtol", o.rtol, "minimum relative distance of a spike from the mean");
  f("exclude_batches_path", o.exclude_batches_path, "file that lists the batches to skip");
  f("finite_only", o.finite_only, "a NaN or infinite loss is a spike too");
}

void fields(StochasticWeightAveragingOptions& o, auto f) {
  f("swa_lrs", o.swa_lrs, "learning rate while weights are averaged; required");
  f("swa_epoch_start", o.swa_epoch_start, "first epoch, or fraction of max_epochs");
  f("annealing_epochs", o.annealing_epochs, "epochs of annealing to swa_lrs");
  f("annealing_strategy", o.annealing_strategy, "annealing schedule", {"cos", "linear"});
  f("device", o.device, "device of the averaged weights; null: that of the model");
}

void fields(WeightAveragingOptions& o, auto f) {
  f("device", o.device, "device of the averaged weights; null: that of the model");
  f("use_buffers", o.use_buffers, "also average buffers");
}

void fields(EMAWeightAveragingOptions& o, auto f) {
  f("device", o.device, "device of the averaged weights; null: that of the model");
  f("use_buffers", o.use_buffers, "also average buffers");
  f("decay", o.decay, "decay of the moving average");
  f("update_every_n_steps", o.update_every_n_steps, "optimizer steps between updates; 0: not by steps");
  f("update_starting_at_step", o.update_starting_at_step, "first optimizer step that updates");
  f("update_starting_at_epoch", o.update_starting_at_epoch, "update after every epoch from this one on");
}

void fields(ModelPruningOptions& o, auto f) {
  f("pruning_fn", o.pruning_fn, "smallest weights (l1) or random ones", {"l1_unstructured", "random_unstructured"});
  f("parameters_to_prune", o.parameters_to_prune, "parameters to prune by full name; default: all of parameter_names");
  f("parameter_names", o.parameter_names, "last part of the names to prune");
  f("use_global_unstructured", o.use_global_unstructured, "prune globally, across all parameters");
  f("amount", o.amount, "number or fraction of weights to prune");
  f("apply_pruning", o.apply_pruning, "apply the pruning");
  f("make_pruning_permanent", o.make_pruning_permanent, "remove the masks when training ends");
  f("use_lottery_ticket_hypothesis", o.use_lottery_ticket_hypothesis,
    "reset the remaining weights to their initial values");
  f("verbose", o.verbose, "1 prints the sparsity, 2 also per parameter");
  f("prune_on_train_epoch_end", o.prune_on_train_epoch_end,
    "prune at the end of the training epoch, not of validation");
}

void fields(BackboneFinetuningOptions& o, auto f) {
  f("unfreeze_backbone_at_epoch", o.unfreeze_backbone_at_epoch, "epoch from which the backbone is trained");
  f("backbone_initial_ratio_lr", o.backbone_initial_ratio_lr,
    "initial learning rate of the backbone, as a fraction of the head's");
  f("backbone_initial_lr", o.backbone_initial_lr, "initial learning rate of the backbone");
  f("should_align", o.should_align, "follow the head's learning rate once it is reached");
  f("train_bn", o.train_bn, "also train batch norm layers of the backbone");
  f("verbose", o.verbose, kVerbose);
  f("backbone", o.backbone, "submodule that is the backbone");
}

}  // namespace levin
