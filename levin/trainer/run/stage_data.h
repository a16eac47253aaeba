#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levin/trainer/loaders.h"
#include "levin/trainer/options.h"

namespace levin::detail {

class Run;

/// The loaders of one stage and how much of them is used.
struct StageData {
  /// "train_dataloader", for errors.
  const char* name = "";
  /// The option that limits it.
  const char* limit_option = "";
  /// overfit_batches takes the place of that option.
  bool overfits = false;
  AnyLoaders loaders = {};
  /// Batches of each loader on this rank, limited; nothing when that is not known.
  std::vector<std::optional<int64_t>> batches = {};
  /// Batches that each loader has given in earlier passes: rows of evaluation steps count on from there.
  std::vector<int64_t> seen = {};
  /// Batches that every rank has; 0 when that is not known.
  std::vector<int64_t> common = {};
  bool ready = false;
  /// The ranks were compared: they share one order of the samples.
  bool orders_compared = false;

  /// "train_dataloader"; "val_dataloader 1" where there are several.
  std::string name_of(size_t index) const;
};

/// The data of a run.
struct RunData {
  /// As the user handed them over, before limits and ranks.
  AnyLoaders asked_train = {}, asked_val = {};
  StageData train{"train_dataloader", "limit_train_batches", true};
  StageData val{"val_dataloader", "limit_val_batches", true};
  StageData test{"test_dataloader", "limit_test_batches"};
  StageData predict{"predict_dataloader", "limit_predict_batches"};
  /// Training batches between two validations; 0: decided by other means.
  int64_t val_every = 0;

  StageData& eval(Stage stage) { return stage == Stage::kTest ? test : stage == Stage::kPredict ? predict : val; }
  const StageData& eval(Stage stage) const { return const_cast<RunData*>(this)->eval(stage); }
};

const Limit& eval_limit(const TrainerPlan& plan, Stage stage);

/// Asks for the loaders where they are not ready, gives each rank its shard, and counts their batches.
void load_train_data(Run& run);
void load_eval_data(Run& run, Stage stage);
/// The same training data in batches of another size.
void set_train_batch_size(Run& run, int64_t batch_size);

}  // namespace levin::detail
