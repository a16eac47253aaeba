#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
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
  /// The end of the run, or a request to stop, came before the epoch's last batch: a longer run goes on inside it.
  bool epoch_cut = false;
};

/// Training steps on the side, after which everything is as it was before: for tuners.
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

/// The surroundings of a callback or a module while the trainer works: where the run is, what it uses, what can be
/// asked of it. It lives for the length of fit(), validate(), test() or predict().
class TrainerContext {
 public:
  virtual ~TrainerContext() = default;

  virtual Stage stage() const = 0;
  bool sanity_checking() const { return stage() == Stage::kSanity; }
  /// Of fit(), whatever is going on inside it.
  virtual bool fitting() const = 0;
  virtual const Progress& progress() const = 0;
  int64_t current_epoch() const { return progress().epoch; }
  int64_t global_step() const { return progress().global_step; }
  /// The epoch or batch under way is the last of the run, as far as that is known.
  virtual bool is_last_batch() const = 0;
  /// Batches of an epoch on this rank; nothing when the loader does not know.
  virtual std::optional<int64_t> num_training_batches() const = 0;
  /// Of each loader of the evaluation under way, or of validation while fitting.
  virtual std::vector<std::optional<int64_t>> num_eval_batches() const = 0;
  /// Optimizer steps that the whole run will make, as far as that is known; nothing when it is not.
  virtual std::optional<int64_t> estimated_stepping_batches() const = 0;
  virtual const TrainerPlan& plan() const = 0;

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
  /// All of them. Tensors stay on the device.
  virtual std::map<std::string, std::variant<double, Tensor>> callback_metrics() = 0;
  virtual std::map<std::string, std::variant<double, Tensor>> logged_metrics() = 0;
  virtual std::map<std::string, std::variant<double, Tensor>> progress_bar_metrics() = 0;
  /// As the module's log(): from a callback's hook.
  virtual void log(std::string_view name, const Tensor& value, const LogOptions& options = {}) = 0;
  virtual void log(std::string_view name, double value, const LogOptions& options = {}) = 0;
  /// Straight to the loggers, at the step the run is at. Rank 0 writes; others return.
  virtual void log_row(const Metrics& metrics) = 0;
  /// Step metrics go to the loggers at the end of this batch: what is costly to know should be found out only then.
  virtual bool row_is_due() const = 0;

  /// Ends the run after the batch under way (once min_epochs and min_steps are reached). With several ranks every rank
  /// must call at the same place, or use `request_stop`.
  virtual void stop(std::string_view reason) = 0;
  /// As above from any rank alone: the ranks agree at one of the next batches.
  virtual void request_stop(std::string_view reason) = 0;
  virtual bool should_stop() const = 0;

  /// Writes a checkpoint. Inside a training batch it is written as soon as the batch is complete, so that it always
  /// stands between two batches. Every rank must call.
  virtual void save_checkpoint(const std::filesystem::path& path, bool weights_only = false) = 0;
  /// As above, and when it is written (at once, or at the end of the batch) `then` is called.
  virtual void save_checkpoint(const std::filesystem::path& path, bool weights_only, std::function<void()> then) = 0;
  /// The path of the checkpoint this run went on from, or that validate, test or predict loaded; empty: none.
  virtual const std::filesystem::path& ckpt_path() const = 0;

  virtual int64_t accumulate_grad_batches() const = 0;
  /// From the next epoch or, inside on_train_epoch_start, this one on.
  virtual void set_accumulate_grad_batches(int64_t k) = 0;
  /// More epochs than max_epochs says: for a pass after training.
  virtual void set_max_epochs(int64_t epochs) = 0;
  /// While set, training steps run forward only: no backward, no optimizer step.
  virtual void set_forward_only(bool enabled) = 0;
  /// Runs training steps outside of the run, from on_fit_start or on_train_start; weights, optimizers, schedulers,
  /// progress, random generators, logs and the loader are put back. No callback or logger hears of it. False when the
  /// data ended before, or after_step said so. An exception (out of memory) comes through after everything was put
  /// back.
  virtual bool run_trial(const Trial& trial) = 0;
  /// The batch size of the training loader; nothing when it is not a Levin loader.
  virtual std::optional<int64_t> train_batch_size() const = 0;
  virtual void set_train_batch_size(int64_t batch_size) = 0;

  /// One line on stdout, of rank 0; a progress bar makes way.
  template <class... Args>
  void print(const Args&... args) {
    print_line(detail::concat(args...));
  }
  virtual void print_line(const std::string& line) = 0;
};

}  // namespace levin
