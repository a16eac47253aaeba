#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "levin/trainer/callback.h"

namespace levin {

struct LearningRateFinderOptions {
  /// The learning rate to begin with.
  double min_lr = 1e-8;
  /// The one to end with.
  double max_lr = 1;
  /// Optimizer steps from the one to the other.
  int64_t num_training_steps = 100;
  /// "exponential" or "linear".
  std::string mode = "exponential";
  /// The search ends when the loss is that many times the best; std::nullopt: never.
  std::optional<double> early_stop_threshold = 4.0;
  /// Train with the learning rate that was found: it is given to the run's optimizer and its schedulers.
  bool update_attr = true;
  /// Its name among the module's hparams, which then says what was found; empty: "lr" or "learning_rate", where the
  /// module has one.
  std::string attr_name = {};
};

/// What a search for a learning rate has seen.
struct LearningRateSearch {
  std::vector<double> lrs;
  /// Smoothed.
  std::vector<double> losses;
  bool stopped_early = false;

  /// Where the loss falls most steeply, leaving out the first and the last steps; nothing when too few are left.
  std::optional<size_t> suggested_index(size_t skip_begin = 10, size_t skip_end = 1) const;
  std::optional<double> suggestion(size_t skip_begin = 10, size_t skip_end = 1) const;
};

/// Looks for a learning rate before training: some steps with a rising one, after which everything is put back. Writes
/// the curve as lr_find.svg and lr_find.png into the folder of the logs. A resumed run does not search again.
///
///     auto finder = std::make_shared<levin::LearningRateFinder>();
///     levin::Trainer trainer({.callbacks = {finder}});
///     trainer.fit(classifier, loader);
///     finder->results().suggestion();
class LearningRateFinder : public Callback {
 public:
  explicit LearningRateFinder(LearningRateFinderOptions options = {});

  CallbackOrder order() const override { return CallbackOrder::kTuner; }
  void on_fit_start(TrainerContext& run) override;

  const LearningRateSearch& results() const { return results_; }
  /// Where the picture is; empty when there is none.
  const std::filesystem::path& plot_path() const { return plot_path_; }

 private:
  double lr_at(int64_t step) const;
  void search(TrainerContext& run);
  void report(TrainerContext& run);
  void apply(TrainerContext& run, double lr) const;

  LearningRateFinderOptions options_;
  LearningRateSearch results_;
  std::filesystem::path plot_path_;
};

}  // namespace levin
