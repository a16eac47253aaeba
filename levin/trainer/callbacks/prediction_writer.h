#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "levin/trainer/callback.h"
#include "levin/trainer/step.h"

namespace levin {

/// Takes what predict_step returns and writes it somewhere, batch by batch or all at the end: derive from it and
/// override what the interval asks for. Every rank writes its own part; `run.fabric().global_rank()` tells them apart.
/// With `PredictOptions{.return_predictions = false}` nothing is kept besides.
class PredictionWriter : public Callback {
 public:
  /// "batch", "epoch" or "batch_and_epoch".
  explicit PredictionWriter(const std::string& write_interval = "batch");

  virtual void write_on_batch_end(TrainerContext&, const StepOutput& prediction, const AnyBatch&, const StepInfo&);
  /// By loader, then by batch; on the CPU.
  virtual void write_on_epoch_end(TrainerContext&, const std::vector<std::vector<StepOutput>>& predictions);

  void on_predict_epoch_start(TrainerContext& run) override;
  void on_predict_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, const StepInfo&) override;
  void on_predict_epoch_end(TrainerContext& run) override;

 private:
  bool on_batch_ = true;
  bool on_epoch_ = false;
  std::vector<std::vector<StepOutput>> predictions_;
};

struct SafetensorsPredictionWriterOptions {
  /// The folder; made when it is not there.
  std::filesystem::path output_dir = {};
  /// "batch": a file for each batch and rank. "epoch": one for each rank.
  std::string write_interval = "batch";
};

/// Writes predictions as safetensors files: "batch_00012-rank_0.safetensors" (of a second loader
/// "loader_1-batch_00012-rank_0.safetensors"), or "predictions-rank_0.safetensors". What predict_step returns as its
/// tensor is named "prediction", what it returns beside that has its own name; in the one file of an epoch the names
/// begin with loader and batch ("0/12/prediction").
class SafetensorsPredictionWriter : public PredictionWriter {
 public:
  explicit SafetensorsPredictionWriter(SafetensorsPredictionWriterOptions options);

  void on_predict_start(TrainerContext& run) override;
  void write_on_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo&) override;
  void write_on_epoch_end(TrainerContext&, const std::vector<std::vector<StepOutput>>& predictions) override;

 private:
  SafetensorsPredictionWriterOptions options_;
};

}  // namespace levin
