#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/core/error.h"
#include "levin/trainer/callback.h"

namespace levin {

/// Thrown, on every rank, by SpikeDetection.
class TrainingSpikeError : public Error {
 public:
  explicit TrainingSpikeError(int64_t batch_idx, const std::string& line) : Error(line), batch_idx_(batch_idx) {}
  int64_t batch_idx() const { return batch_idx_; }

 private:
  int64_t batch_idx_;
};

struct SpikeDetectionOptions {
  /// "min": a rising loss is a spike; "max": a falling one.
  std::string mode = "min";
  /// Losses in the running mean that a loss is compared with.
  int64_t window = 10;
  /// Batches of an epoch before which nothing is a spike.
  int64_t warmup = 1;
  /// A spike is at least so far from the mean ...
  std::optional<double> atol = {};
  /// ... and at least this many times the mean away from it.
  std::optional<double> rtol = 2.0;
  /// The file of batches to leave out, or its folder. Defaults to skip_batches.json in default_root_dir.
  std::filesystem::path exclude_batches_path = {};
  /// A loss that is nan or infinite is a spike, too, and so are gradients, where the host knows of them (on the CPU).
  bool finite_only = true;
};

/// Ends training when the loss jumps: writes the batch and the one before it to skip_batches.json and throws on all
/// ranks. On the CPU every loss is looked at at once. On a GPU the losses stay there until a row of metrics is due, an
/// epoch ends or a checkpoint is about to be written; so no checkpoint has seen a spike, and no batch waits.
class SpikeDetection : public Callback {
 public:
  explicit SpikeDetection(SpikeDetectionOptions options = {});

  void on_fit_start(TrainerContext& run) override;
  void on_train_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                          int64_t batch_idx) override;
  void on_train_epoch_end(TrainerContext& run) override;
  void on_save_checkpoint(TrainerContext& run, StateDict& checkpoint) override;
  void on_exception(TrainerContext& run, const std::exception& error) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  const std::vector<int64_t>& bad_batches() const { return bad_batches_; }

 private:
  void check(TrainerContext& run);
  bool is_spike(int64_t batch_idx, double loss) const;
  [[noreturn]] void fail(TrainerContext& run, int64_t batch_idx);

  SpikeDetectionOptions options_;
  /// Losses that nobody has looked at yet, with their batches.
  std::vector<std::pair<int64_t, Tensor>> pending_;
  /// Batches since the last look.
  int64_t unchecked_ = 0;
  bool failed_ = false;
  std::deque<double> recent_;
  double last_ = 0;
  std::vector<int64_t> bad_batches_;
};

}  // namespace levin
