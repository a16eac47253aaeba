#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/trainer/callback.h"
#include "levin/trainer/callbacks/checkpointing/checkpoint_name.h"
#include "levin/trainer/callbacks/monitor.h"
#include "levin/trainer/values.h"

namespace levin {

/// Whether the newest state is also kept as last.ckpt: `false`, `true` (a copy, which takes as much space again and
/// outlives damage to the other), or "link" (a symbolic link when the state was kept under a name of its own).
class SaveLast {
 public:
  SaveLast() = default;
  SaveLast(bool on) : mode_(on ? Mode::kCopy : Mode::kOff) {}
  /// "true", "false" or "link".
  SaveLast(const char* text) : SaveLast(std::string_view(text)) {}
  SaveLast(std::string_view text);

  bool is_on() const { return mode_ != Mode::kOff; }
  bool is_link() const { return mode_ == Mode::kLink; }

 private:
  enum class Mode { kOff, kCopy, kLink };
  Mode mode_ = Mode::kOff;
};

struct ModelCheckpointOptions {
  /// The folder. Defaults to "checkpoints" in the folder of the first logger, or in default_root_dir without loggers.
  std::filesystem::path dirpath = {};
  /// A pattern (CheckpointName) without ".ckpt". Defaults to "{epoch}-{step}".
  std::string filename = {};
  /// The metric that says which are best; empty: the newest are.
  std::string monitor = {};
  /// Say what was kept, and what was not.
  bool verbose = false;
  /// Keep the newest state as last.ckpt too.
  SaveLast save_last = {};
  /// How many are kept: -1 all, 0 none. More than one needs a monitor.
  int64_t save_top_k = 1;
  /// Keep the state when an exception ends the run.
  bool save_on_exception = false;
  /// Weights only: nothing to resume training from.
  bool save_weights_only = false;
  /// "min" or "max" of the metric is best.
  std::string mode = "min";
  /// "{epoch}" in the name becomes "epoch=3", else "3".
  bool auto_insert_metric_name = true;
  /// Optimizer steps between two; 0 or nothing: not by steps. At most one of this and the next two.
  std::optional<int64_t> every_n_train_steps = {};
  /// Time between two.
  std::optional<Duration> train_time_interval = {};
  /// Epochs between two. Defaults to 1 when neither steps nor time are given. 0: never.
  std::optional<int64_t> every_n_epochs = {};
  /// At the end of the training epoch, or after validation. By default as fits: after validation when it comes more or
  /// less often than once an epoch.
  std::optional<bool> save_on_train_epoch_end = {};
  /// A name that is taken gets "-v1", "-v2"; else what is there is replaced.
  bool enable_version_counter = true;
  /// Seconds, rising; for tests.
  std::function<double()> clock = {};
};

/// Keeps checkpoints along the way: the best by a metric, the newest, or all.
///
///     levin::Trainer trainer({.callbacks = {levin::ModelCheckpoint({.monitor = "val_loss", .save_top_k = 3})}});
///
/// A state is written once for each optimizer step at most, before what it replaces is deleted; one whose weights are
/// nan or inf is not written, and deletes nothing. A monitored value that
/// is nan counts as the worst. When the metric comes from validation, a save that is due by steps or time waits for the
/// next validation, so that value and weights belong together; last.ckpt does not wait. last.ckpt is the newest state
/// whenever a save was due, among the best or not, and at the end of training. When no save was due in the whole run,
/// the state at its end is kept.
class ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(ModelCheckpointOptions options = {});

  /// The best checkpoint (without a monitor: the newest); empty before the first.
  std::filesystem::path best_model_path() const;
  /// Its value of the metric; inf or -inf when that was nan.
  std::optional<double> best_model_score() const { return book_.best_score; }
  /// The value of the newest that was kept for its value.
  std::optional<double> current_score() const { return book_.current_score; }
  /// All that are kept for their value, oldest first.
  std::vector<std::pair<std::filesystem::path, double>> best_k_models() const;
  std::filesystem::path last_model_path() const;
  /// Where checkpoints go; known once a run has started.
  const std::filesystem::path& dirpath() const { return dirpath_; }
  const ModelCheckpointOptions& options() const { return options_; }

  CallbackOrder order() const override { return CallbackOrder::kCheckpoint; }
  std::string state_key() const override;
  /// Names in it are relative to dirpath, so that a folder that was moved keeps working.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  void setup(TrainerContext& run, std::string_view stage) override;
  void on_train_start(TrainerContext& run) override;
  void on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t batch_idx) override;
  void on_train_epoch_end(TrainerContext& run) override;
  void on_validation_end(TrainerContext& run) override;
  void on_train_end(TrainerContext& run) override;
  void on_exception(TrainerContext& run, const std::exception& error) override;

 private:
  struct Kept {
    std::string name;
    double score = 0;
  };

  /// What every fit() starts from.
  struct Book {
    std::vector<Kept> best_k;  // oldest first
    std::string best;          // in dirpath, or an absolute path when it is elsewhere
    std::optional<double> best_score;
    std::optional<double> current_score;
    std::string last;
    /// Optimizer steps at which states were kept; 0: none.
    int64_t ranked_at = 0;
    int64_t last_at = 0;
    /// The metric appears with validation.
    bool from_validation = false;
    /// A save that was due waits for its metric.
    bool waits = false;
    /// Names that are kept no longer. They go when the checkpoint with this book is there; where the run ended before
    /// that, the one that resumes from it deletes them.
    std::vector<std::string> gone;
  };

  bool ranks() const { return !options_.monitor.empty() && options_.save_top_k != 0; }
  bool saves_at_train_epoch_end(const TrainerContext& run) const;
  void on_epoch_trigger(TrainerContext& run);
  /// Keeps the state: among the best when `score` says so (or there is no monitor), and as last.
  void keep(TrainerContext& run, bool among_best, std::optional<double> score);
  void keep_best(TrainerContext& run, double score);
  void keep_last_alone(TrainerContext& run);
  bool is_admitted(double score) const;
  size_t worst() const;
  void update_best();
  /// A name that is free on rank 0, the same on all ranks. Every rank must call.
  std::string choose_name(TrainerContext& run, std::string_view reusable) const;
  std::string choose_last_name(TrainerContext& run) const;
  std::string free_name(TrainerContext& run, const std::string& stem, std::string_view reusable) const;
  bool is_taken(TrainerContext& run, const std::string& name) const;
  bool owns(const std::filesystem::path& path) const;
  /// Every rank must call.
  void point_last_at(TrainerContext& run, const std::string& name) const;
  /// Deletes what is kept no longer. Rank 0 alone does anything.
  void remove_gone(TrainerContext& run);
  void remove(TrainerContext& run, const std::string& name) const;
  std::filesystem::path path_of(const std::string& name) const;

  ModelCheckpointOptions options_;
  CheckpointName name_;
  bool lower_is_better_ = true;
  int64_t every_n_epochs_ = 0;
  int64_t every_n_steps_ = 0;
  std::filesystem::path dirpath_;
  Book book_;
  bool validated_ = false;  // validation has run
  int64_t seen_step_ = 0;
  int64_t resumed_step_ = 0;  // of this run's start
  double saved_time_ = 0;
  detail::SharedTimer timer_;
};

}  // namespace levin
