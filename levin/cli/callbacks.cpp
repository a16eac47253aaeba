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

/// All callbacks that need nothing but words.
constexpr std::array kCallbacks{
    callback<EarlyStopping, EarlyStoppingOptions>("EarlyStopping", "ends a run that gets no better"),
    callback<ModelCheckpoint, ModelCheckpointOptions>("ModelCheckpoint", "keeps the best or newest checkpoints"),
    callback<OnExceptionCheckpoint, OnExceptionCheckpointOptions>("OnExceptionCheckpoint",
                                                                  "keeps the state when an exception ends the run"),
    callback<GradientAccumulationScheduler, GradientAccumulationSchedulerOptions>(
        "GradientAccumulationScheduler", "accumulates over more or fewer batches, by epoch"),
    callback<ModelSummary, ModelSummaryOptions>("ModelSummary", "prints the model's layers"),
    callback<TrainerProgressBar, TrainerProgressBarOptions>("TrainerProgressBar", "shows how far the run is"),
    callback<Timer, TimerOptions>("Timer", "measures a run, or ends it"),
    callback<SafetensorsPredictionWriter, SafetensorsPredictionWriterOptions>("SafetensorsPredictionWriter",
                                                                              "writes what is predicted"),
    callback<LearningRateMonitor, LearningRateMonitorOptions>("LearningRateMonitor", "logs learning rates"),
    callback<LearningRateFinder, LearningRateFinderOptions>("LearningRateFinder", "finds a learning rate first"),
    callback<BatchSizeFinder, BatchSizeFinderOptions>("BatchSizeFinder", "finds the largest batch that fits first"),
    callback<DeviceStatsMonitor, DeviceStatsMonitorOptions>("DeviceStatsMonitor", "logs memory and use of devices"),
    callback<ThroughputMonitor, ThroughputMonitorOptions>("ThroughputMonitor", "logs samples and FLOP per second"),
    callback<MemoryReport, MemoryReportOptions>("MemoryReport", "tells what a step holds, predicted and measured"),
    callback<SpikeDetection, SpikeDetectionOptions>("SpikeDetection", "stops at a sudden loss and notes its batch"),
    callback<StochasticWeightAveraging, StochasticWeightAveragingOptions>("StochasticWeightAveraging",
                                                                          "ends with the average of late weights"),
    callback<WeightAveraging, WeightAveragingOptions>("WeightAveraging", "ends with the average of all weights"),
    callback<EMAWeightAveraging, EMAWeightAveragingOptions>("EMAWeightAveraging",
                                                            "keeps a running average of the weights"),
    callback<ModelPruning, ModelPruningOptions>("ModelPruning", "sets weights to zero along the way"),
    callback<BackboneFinetuning, BackboneFinetuningOptions>("BackboneFinetuning", "trains the head first, then all"),
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
