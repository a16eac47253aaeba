#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levin/fabric/options.h"
#include "levin/loggers/logger.h"
#include "levin/trainer/callback.h"
#include "levin/trainer/values.h"

namespace levin {

class Profiler;

/// Where metrics go: `true` (TensorBoard's event file and metrics.csv, in one new folder of a run), `false`, a logger,
/// or several. By name for command lines: "tensorboard", "csv", "json", "console", or several with commas.
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
  /// "auto", "cpu", "cuda", "gpu".
  std::string accelerator = "auto";
  /// A name ("auto", "ddp", ...) or an options struct (`DdpOptions{...}`).
  StrategyChoice strategy = "auto";
  /// Processes on each node: a count, -1 for all, a list of device numbers, "auto".
  Devices devices = "auto";
  int64_t num_nodes = 1;
  /// "32-true", "16-mixed", "bf16-mixed", "bf16-true", ...
  std::string precision = "32-true";
  /// Where metrics go; by itself TensorBoard and metrics.csv under default_root_dir.
  LoggerChoice logger = {};
  /// What else happens along the way: values or std::make_shared<...>.
  std::vector<CallbackRef> callbacks = {};
  /// So many batches of everything, without logs or checkpoints, to see whether it runs; `true` is one.
  int64_t fast_dev_run = 0;
  /// Epochs to train; -1 without end; by itself 1000 when nothing else ends the run.
  std::optional<int64_t> max_epochs = {};
  /// A request to stop waits until then.
  std::optional<int64_t> min_epochs = {};
  /// Optimizer steps to train; -1 without end.
  int64_t max_steps = -1;
  /// A request to stop waits until then.
  std::optional<int64_t> min_steps = {};
  /// "DD:HH:MM:SS", "90 min" or a std::chrono duration.
  std::optional<Duration> max_time = {};
  /// Batches of an epoch, on each rank: a count, or a share of them.
  std::optional<Limit> limit_train_batches = {};
  std::optional<Limit> limit_val_batches = {};
  std::optional<Limit> limit_test_batches = {};
  std::optional<Limit> limit_predict_batches = {};
  /// Train and validate on the same few batches, in order, to see whether the model can learn them.
  Limit overfit_batches = 0.0;
  /// When to validate: a share of an epoch (0.25), batches (100), optimizer steps (`500_steps`), or a time.
  std::optional<Interval> val_check_interval = {};
  /// Validate in every n-th epoch; std::nullopt: val_check_interval counts on across epochs.
  std::optional<int64_t> check_val_every_n_epoch = 1;
  /// Batches of each validation loader to try before training starts; -1 all, 0 none.
  std::optional<int64_t> num_sanity_val_steps = {};
  /// Optimizer steps between two rows of step metrics; 0 none. By itself 50.
  std::optional<int64_t> log_every_n_steps = {};
  /// Keep the newest checkpoint when no ModelCheckpoint is given.
  std::optional<bool> enable_checkpointing = {};
  std::optional<bool> enable_progress_bar = {};
  std::optional<bool> enable_model_summary = {};
  /// Batches whose gradients make one optimizer step.
  int64_t accumulate_grad_batches = 1;
  /// Off when it is not set, or 0.
  std::optional<double> gradient_clip_val = {};
  /// "norm" (all gradients together) or "value" (each element).
  std::string gradient_clip_algorithm = {};
  Deterministic deterministic = {};
  /// Let cuDNN try which algorithm is fastest for the shapes it sees.
  std::optional<bool> benchmark = {};
  /// validate, test and predict run in inference mode, else without gradients only.
  bool inference_mode = true;
  /// Give each rank its own part of the data.
  bool use_distributed_sampler = true;
  /// "simple", or a profiler.
  ProfilerChoice profiler = {};
  /// Name the operation whose backward made a nan; slow.
  bool detect_anomaly = false;
  /// Nothing but the loop, to measure it.
  bool barebones = false;
  Plugins plugins = {};
  /// Batch norm over the batches of all ranks.
  bool sync_batchnorm = false;
  /// Ask for the loaders anew every n epochs.
  int64_t reload_dataloaders_every_n_epochs = 0;
  /// Where logs and checkpoints go; by itself the current folder.
  std::filesystem::path default_root_dir = {};
  /// Give the hyperparameters to the loggers.
  bool enable_autolog_hparams = true;
};

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
  /// max_epochs was not given and nothing else ends the run.
  bool max_epochs_is_default = false;

  /// The run in a few lines, for people.
  std::string to_string() const;
};

/// Throws Error, one line, for anything unknown, impossible or contradictory.
TrainerPlan resolve_trainer(const TrainerOptions& options, int cuda_devices);

}  // namespace levin
