#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "levin/core/state_dict.h"
#include "levin/loggers/logger.h"
#include "levin/trainer/metric_log.h"

namespace levin::detail {

class Run;

/// What was logged, by loop, and what of it callbacks, loggers and the progress bar see.
struct LoggedMetrics {
  MetricLog train{true}, val{false}, test{false};
  MetricLog::Published published = {};

  MetricLog& of(Stage stage) { return stage == Stage::kTest ? test : stage == Stage::kTrain ? train : val; }
};

/// Where metrics are written.
struct RunLogs {
  std::vector<std::shared_ptr<Logger>> loggers = {};
  /// The same on every rank while a run is under way.
  std::filesystem::path folder = {};
  /// On rank 0: the logs that the checkpoint names are there.
  bool resumed = false;
};

/// The folder of the run, or of its first logger; else default_root_dir.
std::filesystem::path log_dir(const Run& run);
/// Loggers resume in the folder that the checkpoint names, where it is one of theirs.
void reopen_logs(Run& run);
void log_hparams(Run& run);
/// Where the loggers stand, for a checkpoint.
StateList log_positions(const Run& run);

void log_value(Run& run, std::string_view name, const LoggedValue& value, const LogOptions& options);
/// Metrics as they are now, of the step or of the epoch.
const MetricLog::Published& publish(Run& run);
std::optional<double> metric(Run& run, std::string_view name);

/// The x-axis of a row that is written now.
int64_t row_step(const Run& run);
/// Whether step metrics go to the loggers at the end of this batch.
bool row_is_due(const Run& run);
void send_row(Run& run, const MetricMap& metrics, int64_t step, bool with_epoch = true);
/// A row of a callback's own.
void log_row(Run& run, const Metrics& metrics);
void log_step_row(Run& run);
void log_epoch_row(Run& run);

}  // namespace levin::detail
