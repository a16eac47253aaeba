#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "levin/memory/estimate.h"
#include "levin/trainer/callback.h"

namespace levin {

class MemoryCounter;

struct MemoryReportOptions {
  /// What is to be compared with; goes before what the callback would predict itself.
  std::optional<MemoryEstimate> predicted = {};
  /// Makes the model and its step, as for estimate_memory; the batch, strategy, ranks, precision, optimizer and
  /// accumulation of the prediction are those of the run. A module that derives from PredictsMemory needs none.
  MakeTrainingStep make_step = {};
  /// Which optimizer step of the run is measured, from 1: in the first one an optimizer has no state yet.
  int64_t step = 2;
  /// memory.png, .svg and .csv in the folder of the run.
  bool picture = true;
  /// For the CPU: a counter that was made before the model, whose peak is reset. None: the callback has its own while
  /// it measures, which cannot see storage of the model that is resized later, as strategies that divide it do.
  MemoryCounter* counter = nullptr;
};

/// A TrainModule that can make its model and step again, on tensors without memory: MemoryReport predicts automatically
/// then.
struct PredictsMemory {
  virtual ~PredictsMemory() = default;
  virtual TrainingStep make_step() const = 0;
};

/// Measures what one optimizer step of a fit holds on rank 0, by kind, and prints it once, beside what was predicted;
/// gives the figures to the loggers ("memory/peak", ...), and draws the memory over the step (memory.png in the folder
/// of the run). Other steps are left alone.
///
///     levin::Trainer trainer({.callbacks = {levin::MemoryReport({.make_step = make_step})}});
class MemoryReport : public Callback {
 public:
  explicit MemoryReport(MemoryReportOptions options = {});

  /// The same figures as a prediction's: parameters, gradients and optimizer state as tensors have them, activations
  /// and peak as the allocator counts them. Nothing before the step, and on other ranks than 0.
  const std::optional<MemoryEstimate>& measured() const { return measured_; }
  /// Given, or made by the callback; nothing when neither.
  const std::optional<MemoryEstimate>& predicted() const { return predicted_; }

  void setup(TrainerContext& run, std::string_view stage) override;
  void teardown(TrainerContext& run, std::string_view stage) override;
  void on_train_start(TrainerContext& run) override;
  void on_train_end(TrainerContext& run) override;
  void on_train_batch_start(TrainerContext& run, const AnyBatch& batch, int64_t batch_idx) override;
  void on_train_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                          int64_t batch_idx) override;
  void on_before_zero_grad(TrainerContext& run, Optimizer& optimizer) override;
  void on_before_backward(TrainerContext& run, const Tensor& loss) override;
  void on_before_optimizer_step(TrainerContext& run, Optimizer& optimizer) override;

 private:
  /// There only until the step was measured.
  struct Measuring;

  void predict(TrainerContext& run, const AnyBatch& batch);
  void begin_backward(TrainerContext& run);
  void finish(TrainerContext& run);
  void report(TrainerContext& run) const;

  MemoryReportOptions options_;
  std::optional<MemoryEstimate> measured_, predicted_;
  std::shared_ptr<Measuring> measuring_;
};

/// Kinds in rows; with a prediction: predicted, measured, and measured / predicted.
std::string memory_table(const MemoryEstimate& measured, const MemoryEstimate* predicted, const std::string& title);

}  // namespace levin
