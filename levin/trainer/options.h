#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levin/fabric/options.h"
#include "levin/loggers/logger_names.h"
#include "levin/trainer/callback.h"
#include "levin/trainer/values.h"

namespace levin {

class Profiler;

/// Where metrics go: `true` (TensorBoard's event file and metrics.csv, in one new folder of a run), `false`, a logger,
/// or several. By name for command lines (logger_names()): "csv", or several with commas.
class LoggerChoice {
 public:
  LoggerChoice() = default;
  LoggerChoice(bool on) : on_(on), set_(true) {}
  LoggerChoice(const char* names) : names_(names), set_(true) {}
  LoggerChoice(std::string names) : names_(std::move(names)), set_(true) {}
  template <std::derived_from<Logger> L>
  LoggerChoice(std::shared_ptr<L> logger) : loggers_{std::move(logger)}, set_(true) {}
  LoggerChoice(std::vector<std::shared_ptr<Logger>> loggers) : loggers_(std::move(loggers)), set_(true) {}
  LoggerChoice(std::initializer_list<std::shared_ptr<Logger>> loggers) : loggers_(loggers), set_(true) {}

  /// "true", "false" and the names of loggers.
  static std::vector<std::string> known() {
    auto names = logger_names();
    names.insert(names.begin(), {"true", "false"});
    return names;
  }

  /// The user said something, in place of leaving the default.
  bool is_set() const { return set_; }
  bool is_off() const { return !on_ && loggers_.empty() && names_.empty(); }
  const std::string& names() const { return names_; }
  const std::vector<std::shared_ptr<Logger>>& loggers() const { return loggers_; }

 private:
  bool on_ = false;
  std::string names_;
  std::vector<std::shared_ptr<Logger>> loggers_;
  bool set_ = false;
};

/// A profiler by name ("simple") or as an object; empty: none.
class ProfilerChoice {
 public:
  ProfilerChoice() = default;
  ProfilerChoice(const char* name) : name_(name) {}
  ProfilerChoice(std::string name) : name_(std::move(name)) {}
  template <std::derived_from<Profiler> P>
  ProfilerChoice(std::shared_ptr<P> profiler) : profiler_(std::move(profiler)) {}

  bool is_set() const { return profiler_ != nullptr || !name_.empty(); }
  const std::string& name() const { return name_; }
  const std::shared_ptr<Profiler>& profiler() const { return profiler_; }

 private:
  std::string name_;
  std::shared_ptr<Profiler> profiler_;
};

/// What a run asks for. Fields stand in the order of Lightning's arguments, with its names, defaults and units.
///
///     levin::Trainer trainer({.devices = 4, .precision = "bf16-mixed", .max_epochs = 10});
struct TrainerOptions {
  /// What to run on: "auto" (a GPU if there is one), "cpu", "cuda", "gpu".
  std::string accelerator = "auto";
  /// How the model is spread over processes: a name ("auto", "ddp", "fsdp", ...) or an options struct
  /// (`DdpOptions{...}`). "auto": "single_device" for one process, "ddp" for several.
  StrategyChoice strategy = "auto";
  /// Processes on each node: a count, -1 for all GPUs, a list of device numbers, or "auto".
  Devices devices = "auto";
  /// Number of nodes (machines).
  int64_t num_nodes = 1;
  /// "32-true", "16-mixed", "bf16-mixed", "bf16-true", ...
  std::string precision = "32-true";
  /// Where metrics go. Defaults to TensorBoard and metrics.csv under `default_root_dir`; `false` turns logging off.
  LoggerChoice logger = {};
  /// Callbacks: values or std::make_shared<...>.
  std::vector<CallbackRef> callbacks = {};
  /// Runs N batches of each stage, without logs or checkpoints, to see whether everything works; `true` is 1.
  int64_t fast_dev_run = 0;
  /// Number of epochs; -1 for unlimited. Defaults to 1000 if neither `max_steps` nor `max_time` is set.
  std::optional<int64_t> max_epochs = {};
  /// A request to stop waits until this many epochs are done. Defaults to 0, or to 1 if `min_steps` is set.
  std::optional<int64_t> min_epochs = {};
  /// Number of optimizer steps; -1 for unlimited.
  int64_t max_steps = -1;
  /// A request to stop waits until this many optimizer steps are done. Defaults to 0.
  std::optional<int64_t> min_steps = {};
  /// Longest time to train: "DD:HH:MM:SS", "90 min" or a std::chrono duration. Defaults to unlimited.
  std::optional<Duration> max_time = {};
  /// Training batches of an epoch, on each rank: a count (10) or a fraction of them (0.1). Defaults to 1.0, all of
  /// them.
  std::optional<Limit> limit_train_batches = {};
  /// The same for each validation loader; 0 turns validation off.
  std::optional<Limit> limit_val_batches = {};
  /// The same for each test loader.
  std::optional<Limit> limit_test_batches = {};
  /// The same for each predict loader.
  std::optional<Limit> limit_predict_batches = {};
  /// Trains and validates on the same few batches, in order, to see whether the model can learn them; 0.0 is off.
  Limit overfit_batches = 0.0;
  /// When to validate: a fraction of an epoch (0.25), batches (100), optimizer steps (`500_steps`) or a time ("30
  /// min"). Defaults to 1.0, after each epoch.
  std::optional<Interval> val_check_interval = {};
  /// Validates in every n-th epoch; std::nullopt: `val_check_interval` counts across epochs.
  std::optional<int64_t> check_val_every_n_epoch = 1;
  /// Batches of each validation loader to try before training; -1 for all, 0 for none. Defaults to 2.
  std::optional<int64_t> num_sanity_val_steps = {};
  /// Optimizer steps between two rows of step metrics; 0 for none. Defaults to 50.
  std::optional<int64_t> log_every_n_steps = {};
  /// Keeps the newest checkpoint if no ModelCheckpoint is given. Defaults to true.
  std::optional<bool> enable_checkpointing = {};
  /// Shows a progress bar. Defaults to true.
  std::optional<bool> enable_progress_bar = {};
  /// Prints a summary of the model before training. Defaults to true.
  std::optional<bool> enable_model_summary = {};
  /// Number of micro-batches whose gradients are accumulated for one optimizer step.
  int64_t accumulate_grad_batches = 1;
  /// Gradients are clipped to this; not set or 0: no clipping.
  std::optional<double> gradient_clip_val = {};
  /// "norm" (the norm of all gradients together) or "value" (each element). Defaults to "norm".
  std::string gradient_clip_algorithm = {};
  /// Allows deterministic algorithms only; "warn": lets the others run, with a warning. Defaults to off.
  Deterministic deterministic = {};
  /// Lets cuDNN measure which algorithm is fastest for the shapes it sees. Not set: torch's setting stays.
  std::optional<bool> benchmark = {};
  /// Runs validate, test and predict in inference mode; `false`: in no-grad mode.
  bool inference_mode = true;
  /// Gives each rank its own shard of the data.
  bool use_distributed_sampler = true;
  /// "simple", or a profiler. Defaults to none.
  ProfilerChoice profiler = {};
  /// Names the operation whose backward made a NaN; slow.
  bool detect_anomaly = false;
  /// Turns everything off but the loop, to measure its overhead.
  bool barebones = false;
  /// Parts that are seldom replaced: the cluster environment, the gradient scaler of 16-mixed.
  Plugins plugins = {};
  /// Computes batch norm over the batches of all ranks.
  bool sync_batchnorm = false;
  /// Asks for the loaders again every n epochs; 0 for never.
  int64_t reload_dataloaders_every_n_epochs = 0;
  /// Where logs and checkpoints go. Defaults to the current folder.
  std::filesystem::path default_root_dir = {};
  /// Gives the hyperparameters to the loggers.
  bool enable_autolog_hparams = true;
  /// Captures the steps in CUDA graphs and replays them (docs/compile.md); "fuse": fuses their operators first. What
  /// cannot be captured runs eagerly, and a line says why.
  CompileMode compile = false;
  /// What becomes of an optimizer step whose loss or gradients are nan or inf on any rank: "stop" ends the run on all
  /// ranks, "skip" leaves the step out on all ranks, "rollback" goes back to the weights of the last good checkpoint,
  /// "warn" makes it, with a warning (docs/trainer.md).
  std::string on_nonfinite = "stop";
  /// How often a run with `on_nonfinite = "rollback"` goes back; the next time it ends.
  int64_t max_rollbacks = 3;
};

/// TrainerOptions::on_nonfinite.
enum class NonFinitePolicy { kStop, kSkip, kWarn, kRollback };

/// What a run will do: every default filled in, every name known, contradictions refused. Printable, and made without
/// data or hardware.
struct TrainerPlan {
  FabricOptions fabric;
  FabricPlan devices;
  int64_t fast_dev_run = 0;
  int64_t max_epochs = -1;
  int64_t min_epochs = 0;
  int64_t max_steps = -1;
  int64_t min_steps = 0;
  std::optional<Duration> max_time;
  Limit limit_train = 1.0, limit_val = 1.0, limit_test = 1.0, limit_predict = 1.0;
  bool overfits = false;
  Interval val_check = 1.0;
  std::optional<int64_t> check_val_every_n_epoch = 1;
  int64_t sanity_steps = 2;
  int64_t log_every_n_steps = 50;
  bool checkpoints = true;
  bool progress_bar = true;
  bool model_summary = true;
  int64_t accumulate = 1;
  double clip_val = 0;
  bool clips_value = false;
  Deterministic deterministic;
  std::optional<bool> benchmark;
  bool inference_mode = true;
  bool use_distributed_sampler = true;
  bool detect_anomaly = false;
  bool barebones = false;
  int64_t reload_every_n_epochs = 0;
  std::filesystem::path root_dir;
  bool autolog_hparams = true;
  NonFinitePolicy on_nonfinite = NonFinitePolicy::kStop;
  int64_t max_rollbacks = 3;
  /// max_epochs was not given and nothing else ends the run.
  bool max_epochs_is_default = false;

  /// The run in a few lines, for people.
  std::string to_string() const;
};

/// Throws Error, one line, for anything unknown, impossible or contradictory.
TrainerPlan resolve_trainer(const TrainerOptions& options, int cuda_devices);

}  // namespace levin
