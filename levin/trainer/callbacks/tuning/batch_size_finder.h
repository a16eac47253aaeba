#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levin/trainer/callback.h"

namespace levin {

struct BatchSizeFinderOptions {
  /// "power": doubled until memory runs out, then the last that fitted. "binsearch": between those two the largest.
  std::string mode = "power";
  /// Optimizer steps with each size.
  int64_t steps_per_trial = 3;
  /// The size to begin with.
  int64_t init_val = 2;
  /// Sizes to try at most.
  int64_t max_trials = 25;
  /// Share that is taken off in the end, for safety; binsearch alone.
  double margin = 0.05;
  /// Never more than that.
  int64_t max_val = 8192;
};

/// Looks for the largest batch that fits into memory before training, and trains with it. Everything else is put back.
/// A resumed run does not search again; several ranks are refused, since one that runs out of memory leaves the others
/// waiting.
class BatchSizeFinder : public Callback {
 public:
  struct Attempt {
    int64_t batch_size;
    bool fits;
  };

  explicit BatchSizeFinder(BatchSizeFinderOptions options = {});

  CallbackOrder order() const override { return CallbackOrder::kTuner; }
  void on_fit_start(TrainerContext& run) override;

  /// What was found; nothing before.
  std::optional<int64_t> optimal_batch_size() const { return optimal_; }
  const std::vector<Attempt>& attempts() const { return attempts_; }

 private:
  bool fits(TrainerContext& run, int64_t batch_size);
  int64_t double_until_full(TrainerContext& run);

  BatchSizeFinderOptions options_;
  std::optional<int64_t> optimal_;
  std::vector<Attempt> attempts_;
  /// The whole of the data was in one batch: more cannot be tried.
  bool all_in_one_ = false;
  /// The smallest that did not fit; 0: none.
  int64_t too_large_ = 0;
};

namespace detail {
/// Whether an exception says that memory ran out, on a GPU or on the host.
bool is_out_of_memory(const std::exception& error);
}  // namespace detail

}  // namespace levin
