#pragma once

#include <optional>
#include <string_view>

#include "levin/devices/cpu_load.h"
#include "levin/trainer/callback.h"

namespace levin {

struct DeviceStatsMonitorOptions {
  /// Processors and memory of the machine too. By default when training runs on the CPU.
  std::optional<bool> cpu_stats = {};
};

/// Gives the memory figures of rank 0's device to the loggers, before and after each training batch that has a row:
/// "DeviceStatsMonitor.on_train_batch_start/allocated_bytes.all.current" and so on. Needs a logger.
class DeviceStatsMonitor : public Callback {
 public:
  explicit DeviceStatsMonitor(DeviceStatsMonitorOptions options = {});

  void setup(TrainerContext& run, std::string_view stage) override;
  void on_train_batch_start(TrainerContext& run, const AnyBatch& batch, int64_t batch_idx) override;
  void on_train_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                          int64_t batch_idx) override;

 private:
  void log(TrainerContext& run, std::string_view hook);

  DeviceStatsMonitorOptions options_;
  CpuLoad load_;
};

}  // namespace levin
