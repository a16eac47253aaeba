#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "levin/devices/flop_counter.h"
#include "levin/loggers/logger.h"
#include "levin/trainer/callback.h"

namespace levin {

struct ThroughputMonitorOptions {
  /// Samples of a batch. Defaults to the first size of its first tensor.
  std::function<int64_t(const AnyBatch&)> batch_size_fn = {};
  /// Items of a batch, such as tokens. By default none are counted.
  std::function<int64_t(const AnyBatch&)> length_fn = {};
  /// Batches that the rates are taken over.
  int64_t window_size = 100;
  /// Floating point operations of a batch on one device, forward and backward. Defaults to those of matrix products,
  /// convolutions and attention are counted in the first training batch. 0: not wanted.
  std::optional<double> flops_per_batch = {};
  /// FLOP/s that the device could do, for mfu. By default from a table of known devices.
  std::optional<double> available_flops = {};
  /// Seconds, rising; for tests.
  std::function<double()> clock = {};
};

/// Gives rates to the loggers: "train/device/batches_per_sec", "samples_per_sec", "items_per_sec", "flops_per_sec",
/// "mfu" of a device, without "device/" of all together when there are several, and "train/time", "batches", "samples",
/// "lengths" so far. The device is waited for only when a row of metrics is due, not at every batch, and time spent in
/// validation does not count. validate, test and predict give one row each ("validate/...").
class ThroughputMonitor : public Callback {
 public:
  explicit ThroughputMonitor(ThroughputMonitorOptions options = {});

  void setup(TrainerContext& run, std::string_view stage) override;
  void on_train_start(TrainerContext& run) override;
  void on_train_batch_start(TrainerContext& run, const AnyBatch& batch, int64_t batch_idx) override;
  void on_train_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                          int64_t batch_idx) override;
  void on_validation_start(TrainerContext& run) override;
  void on_validation_end(TrainerContext& run) override;
  void on_validation_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                               const StepInfo& at) override;
  void on_test_start(TrainerContext& run) override;
  void on_test_end(TrainerContext& run) override;
  void on_test_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                         const StepInfo& at) override;
  void on_predict_start(TrainerContext& run) override;
  void on_predict_end(TrainerContext& run) override;
  void on_predict_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                            const StepInfo& at) override;

 private:
  /// How much was done at a moment when the device had done all of it.
  struct Mark {
    double time = 0;
    int64_t batches = 0, samples = 0, lengths = 0;
  };
  struct Meter {
    Mark now;
    std::deque<Mark> marks;
    double start = 0;
    /// Seconds that do not count.
    double paused = 0;
  };

  double wait_and_read_clock(TrainerContext& run) const;
  void start(TrainerContext& run, Meter& meter) const;
  void count(Meter& meter, const AnyBatch& batch) const;
  void mark(TrainerContext& run, Meter& meter) const;
  void log(TrainerContext& run, const Meter& meter, const char* stage);
  void find_available_flops(TrainerContext& run);

  ThroughputMonitorOptions options_;
  double flops_per_batch_ = 0;
  double available_flops_ = 0;
  Meter train_, eval_;
  int64_t step_ = 0;
  std::shared_ptr<FlopCounter> counter_;
};

}  // namespace levin
