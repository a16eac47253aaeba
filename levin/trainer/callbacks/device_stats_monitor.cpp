#include "levin/trainer/callbacks/device_stats_monitor.h"

#include <string>

#include "levin/devices/accelerator.h"
#include "levin/trainer/context.h"

namespace levin {

DeviceStatsMonitor::DeviceStatsMonitor(DeviceStatsMonitorOptions options) : options_(options) {}

void DeviceStatsMonitor::setup(TrainerContext& run, std::string_view stage) {
  if (stage != "fit") return;
  LEVIN_CHECK(!run.loggers().empty() || run.plan().fast_dev_run > 0,
              "[DeviceStatsMonitor] there is no logger to write to; give the Trainer one, or leave the callback out");
}

void DeviceStatsMonitor::on_train_batch_start(TrainerContext& run, const AnyBatch&, int64_t) {
  if (run.row_is_due()) log(run, "on_train_batch_start");
}

void DeviceStatsMonitor::on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) {
  if (run.row_is_due()) log(run, "on_train_batch_end");
}

void DeviceStatsMonitor::log(TrainerContext& run, std::string_view hook) {
  if (!run.fabric().is_global_zero()) return;
  const auto device = run.fabric().device();
  const auto prefix = "DeviceStatsMonitor." + std::string(hook) + "/";
  Metrics metrics;
  const auto add = [&](const char* name, double value) { metrics.emplace_back(prefix + name, value); };
  if (!device.is_cpu() || options_.cpu_stats.value_or(true)) {
    const auto memory = accelerator_of(device).memory(device);
    add("allocated_bytes.all.current", static_cast<double>(memory.allocated));
    add("allocated_bytes.all.peak", static_cast<double>(memory.peak_allocated));
    add("reserved_bytes.all.current", static_cast<double>(memory.reserved));
    add("reserved_bytes.all.peak", static_cast<double>(memory.peak_reserved));
  }
  if (options_.cpu_stats.value_or(device.is_cpu())) {
    const auto load = load_.read();
    add("cpu_percent", load.cpu_percent);
    add("cpu_vm_percent", load.memory_percent);
    add("cpu_swap_percent", load.swap_percent);
  }
  if (!metrics.empty()) run.log_row(metrics);
}

}  // namespace levin
