#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/core/error.h"
#include "levin/fabric/fabric.h"
#include "levin/loggers/logger.h"
#include "levin/trainer/callback.h"
#include "levin/trainer/optimizers.h"
#include "levin/trainer/options.h"
#include "levin/trainer/step.h"

namespace levin {

class TrainModuleBase;

/// How far a run is. A checkpoint holds it.
struct Progress {
  /// Epochs completed; inside an epoch its number.
  int64_t epoch = 0;
  /// Optimizer steps made.
  int64_t global_step = 0;
  /// Batches of this epoch that are done.
  int64_t batch = 0;
  /// Batches of all epochs that are done.
  int64_t total_batches = 0;
  /// Batches that made at least one optimizer step: the x-axis of the loggers.
  int64_t stepped_batches = 0;
  /// total_batches at the last validation; -1 before the first.
  int64_t validated_at = -1;
  /// No more batches come in this epoch and its end hooks are running: what is left is to close it.
  bool closing_epoch = false;
  /// The end of the run, or a request to stop, came before the epoch's last batch: a longer run resumes inside it.
  bool epoch_cut = false;
};

/// Where a run is, and how long it will be.
class RunPosition {
 public:
  virtual ~RunPosition() = default;

  virtual Stage stage() const = 0;
  bool sanity_checking() const { return stage() == Stage::kSanity; }
  /// Of fit(), whatever runs inside it.
  virtual bool fitting() const = 0;
  virtual const Progress& progress() const = 0;
  int64_t current_epoch() const { return progress().epoch; }
  int64_t global_step() const { return progress().global_step; }
  /// The batch under way is the last of its epoch, as far as that is known.
  virtual bool is_last_batch() const = 0;
  /// Batches of an epoch on this rank; nothing when the loader does not know.
  virtual std::optional<int64_t> num_training_batches() const = 0;
  /// Of each loader of the evaluation under way, or of validation while fitting.
  virtual std::vector<std::optional<int64_t>> num_eval_batches() const = 0;
  /// Optimizer steps that the whole run will make; nothing when that is not known.
  virtual std::optional<int64_t> estimated_stepping_batches() const = 0;
  /// What the run does. Tuning changes it for this run.
  virtual const TrainerPlan& plan() const = 0;
};

/// The metrics of a run so far, by the names callbacks see ("loss", "loss_epoch"). Tensors stay on the device.
class RunMetrics {
 public:
  virtual ~RunMetrics() = default;

  /// What callbacks may monitor.
  virtual MetricMap callback_metrics() = 0;
  /// What the loggers were given.
  virtual MetricMap logged_metrics() = 0;
  virtual MetricMap progress_bar_metrics() = 0;
};

/// Training steps after which everything is as it was before: for tuners.
struct Trial {
  /// Optimizer steps to make.
  int64_t steps = 0;
  /// The batch size to try; 0: as it is.
  int64_t batch_size = 0;
  /// Before each batch; may set learning rates.
  std::function<void(int64_t step)> before_step = {};
  /// After each optimizer step, with its loss; false ends the trial.
  std::function<bool(int64_t step, double loss)> after_step = {};
};

/// What a tuner does to a run: trials, and changes of the plan for this run alone.
class Tuning {
 public:
  virtual ~Tuning() = default;

  /// Runs training steps outside of the run, from on_fit_start or on_train_start; weights, optimizers, schedulers,
  /// progress, random generators, logs and the loader are restored. No callback or logger hears of it. False when the
  /// data ended before, or after_step said so. An exception (out of memory) is thrown on after everything was restored.
  virtual bool run_trial(const Trial& trial) = 0;
  /// The batch size of the training loader; nothing when it is not a Levin loader.
  virtual std::optional<int64_t> train_batch_size() const = 0;
  virtual void set_train_batch_size(int64_t batch_size) = 0;
  /// From the next epoch or, inside on_train_epoch_start, this one on: `plan().accumulate`.
  virtual void set_accumulate_grad_batches(int64_t k) = 0;
  /// Another `plan().max_epochs`: for a pass after training.
  virtual void set_max_epochs(int64_t epochs) = 0;
  /// While set, training steps run forward only: no backward, no optimizer step.
  virtual void set_forward_only(bool enabled) = 0;
};

/// The surroundings of a callback or a module while the trainer works: where the run is, what it uses, what can be
/// asked of it. It lives for the length of fit(), validate(), test() or predict().
class TrainerContext : public RunPosition {
 public:
  virtual Fabric& fabric() const = 0;
  virtual TrainModuleBase& module() const = 0;
  virtual const std::vector<Optimizer>& optimizers() const = 0;
  /// Schedulers and when they step; callbacks may change and replace them.
  virtual std::vector<SchedulerConfig>& schedulers() = 0;
  virtual const std::vector<CallbackRef>& callbacks() const = 0;
  virtual const std::vector<std::shared_ptr<Logger>>& loggers() const = 0;
  /// The folder of the first logger, else default_root_dir.
  virtual std::filesystem::path log_dir() const = 0;

  /// The newest value of a metric that was logged, by the names callbacks see ("loss", "loss_epoch"). Reads the device.
  virtual std::optional<double> metric(std::string_view name) = 0;
  /// All of them.
  virtual RunMetrics& metrics() = 0;
  /// As the module's log(): from a callback's hook.
  virtual void log(std::string_view name, const Tensor& value, const LogOptions& options = {}) = 0;
  virtual void log(std::string_view name, double value, const LogOptions& options = {}) = 0;
  /// Straight to the loggers, at the step the run is at. Rank 0 writes; others return.
  virtual void log_row(const Metrics& metrics) = 0;
  /// Step metrics go to the loggers at the end of this batch: what is costly to know should be found out only then.
  virtual bool row_is_due() const = 0;
  /// One line on stdout, of rank 0; printed above the progress bar.
  template <class... Args>
  void print(const Args&... args) {
    print_line(detail::concat(args...));
  }

  /// Ends the run after the batch under way (once min_epochs and min_steps are reached). With several ranks every rank
  /// must call at the same place, or use `request_stop`.
  virtual void stop(std::string_view reason) = 0;
  /// As above from any rank alone: the ranks agree at one of the next batches.
  virtual void request_stop(std::string_view reason) = 0;
  virtual bool should_stop() const = 0;

  /// Writes a checkpoint. Inside a training batch it is written as soon as the batch is complete, so that it is always
  /// between two batches; when it is written, `then` is called. Every rank must call.
  virtual void save_checkpoint(const std::filesystem::path& path, bool weights_only = false,
                               std::function<void()> then = {}) = 0;
  /// As above for the model that validation has just given a value. Inside a window of accumulation, whose end changes
  /// the model, the checkpoint holds that one, and beside it what a run resumes from.
  void save_validated_checkpoint(const std::filesystem::path& path, bool weights_only = false,
                                 std::function<void()> then = {}) {
    save_validated(path, weights_only, std::move(then));
  }
  /// The path of the checkpoint this run resumed from, or that validate, test or predict loaded; empty: none.
  virtual const std::filesystem::path& ckpt_path() const = 0;
  /// That path was found by ckpt_path "last", and not named by the user: the run continues the collection of the
  /// one before.
  virtual bool resumes_last() const { return false; }

  /// Whether all weights that are trained are finite, on all ranks. When they are not a line says so, and no checkpoint
  /// is written. Every rank must call.
  virtual bool weights_are_finite() { return true; }
  /// Whether loss and gradients of the batch under way were finite, on all ranks, as far as the host knows: on a GPU it
  /// learns of it later.
  virtual bool step_is_finite() const { return true; }

  /// Calls the model outside of its steps, from a hook: in the run's precision, with parameters gathered where they are
  /// sharded. Every rank must call.
  ///
  ///     run.call_model([&] { logits = net(tokens); });
  virtual void call_model(const std::function<void()>& call) = 0;
  /// Whether the model is cut into stages, which several ranks compute in micro-batches: call_model cannot run it then.
  bool runs_in_parts() const { return in_parts(); }

  /// For tuners: trials, and changes of the plan.
  virtual Tuning& tuning() = 0;

 protected:
  virtual void print_line(const std::string& line) = 0;
  virtual bool in_parts() const { return false; }
  virtual void save_validated(const std::filesystem::path& path, bool weights_only, std::function<void()> then) {
    save_checkpoint(path, weights_only, std::move(then));
  }
};

}  // namespace levin
