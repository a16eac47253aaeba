#include "levin/cli/callbacks.h"

#include <array>
#include <string>

#include "levin/cli/callback_fields.h"
#include "levin/core/error.h"

namespace levin::cli {
namespace {

struct Entry {
  const char* name;
  const char* help;
  config::AnyOptions (*options)();
  CallbackRef (*make)(const config::AnyOptions& options);
};

template <class T, class Options>
constexpr Entry callback(const char* name, const char* help) {
  return {name, help, [] { return config::AnyOptions(Options{}); },
          [](const config::AnyOptions& options) { return CallbackRef(std::make_shared<T>(options.get<Options>())); }};
}

/// All callbacks whose options can be set by name. A callback is a row here and its fields in callback_fields.h.
constexpr std::array kCallbacks{
    callback<EarlyStopping, EarlyStoppingOptions>("EarlyStopping", "stops training when a metric stops improving"),
    callback<ModelCheckpoint, ModelCheckpointOptions>("ModelCheckpoint",
                                                      "saves checkpoints and keeps the best or newest"),
    callback<OnExceptionCheckpoint, OnExceptionCheckpointOptions>("OnExceptionCheckpoint",
                                                                  "saves a checkpoint when an exception is raised"),
    callback<GradientAccumulationScheduler, GradientAccumulationSchedulerOptions>(
        "GradientAccumulationScheduler", "changes accumulate_grad_batches by epoch"),
    callback<ModelSummary, ModelSummaryOptions>("ModelSummary", "prints the layers of the model"),
    callback<TrainerProgressBar, TrainerProgressBarOptions>("TrainerProgressBar", "shows a progress bar"),
    callback<Timer, TimerOptions>("Timer", "measures training time and can limit it"),
    callback<SafetensorsPredictionWriter, SafetensorsPredictionWriterOptions>(
        "SafetensorsPredictionWriter", "writes predictions to safetensors files"),
    callback<LearningRateMonitor, LearningRateMonitorOptions>("LearningRateMonitor", "logs learning rates"),
    callback<LearningRateFinder, LearningRateFinderOptions>("LearningRateFinder",
                                                            "finds a learning rate before training"),
    callback<BatchSizeFinder, BatchSizeFinderOptions>("BatchSizeFinder", "finds the largest batch size that fits"),
    callback<DeviceStatsMonitor, DeviceStatsMonitorOptions>("DeviceStatsMonitor",
                                                            "logs memory and utilization of devices"),
    callback<ThroughputMonitor, ThroughputMonitorOptions>("ThroughputMonitor", "logs samples and FLOPs per second"),
    callback<MemoryReport, MemoryReportOptions>("MemoryReport", "prints the memory of a step, predicted and measured"),
    callback<SpikeDetection, SpikeDetectionOptions>("SpikeDetection", "stops at a loss spike and records its batch"),
    callback<StochasticWeightAveraging, StochasticWeightAveragingOptions>(
        "StochasticWeightAveraging", "averages the weights of the last epochs (SWA)"),
    callback<WeightAveraging, WeightAveragingOptions>("WeightAveraging", "averages the weights over training"),
    callback<EMAWeightAveraging, EMAWeightAveragingOptions>("EMAWeightAveraging",
                                                            "exponential moving average of the weights"),
    callback<ModelPruning, ModelPruningOptions>("ModelPruning", "prunes weights during training"),
    callback<BackboneFinetuning, BackboneFinetuningOptions>("BackboneFinetuning",
                                                            "trains the head first, then the backbone too"),
};

}  // namespace

const std::vector<config::Class>& callback_classes() {
  static const std::vector<config::Class> classes = [] {
    std::vector<config::Class> all;
    for (const auto& entry : kCallbacks) all.push_back({entry.name, entry.help, entry.options});
    return all;
  }();
  return classes;
}

CallbackRef make_callback(const config::Chosen& chosen) {
  for (const auto& entry : kCallbacks)
    if (chosen.name == entry.name) return entry.make(chosen.options);
  throw Error("[config] \"" + chosen.name + "\" is not in the table it was chosen from");
}

}  // namespace levin::cli
