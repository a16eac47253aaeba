#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/core/state_dict.h"

namespace levin {

/// A number to log. A tensor has one element; one on a device is read when its row is written, not before, so that
/// logging does not wait for the device.
using MetricValue = std::variant<double, int64_t, at::Tensor>;

/// Names and numbers: `{{"loss", loss}, {"epoch", 3}}`.
using Metrics = std::vector<std::pair<std::string, MetricValue>>;

/// Where metrics go. Only rank 0 calls; the other ranks may construct one, which touches no disk.
class Logger {
 public:
  virtual ~Logger() = default;

  /// How long the run is, before its first row; 0 or less is unknown. By default nothing is done with it.
  virtual void set_totals(int64_t epochs, int64_t batches_per_epoch);
  /// A row of metrics. Without a step the logger counts its rows.
  virtual void log_metrics(const Metrics& metrics, std::optional<int64_t> step = {}) = 0;
  virtual void log_hyperparams(const StateDict& values) = 0;

  /// What not every logger can show; one that cannot does nothing.
  virtual void log_histogram(const std::string& name, const at::Tensor& values, std::optional<int64_t> step = {});
  /// An image [C, H, W] or [H, W], uint8 or floating point 0..1, with 1, 3 or 4 channels.
  virtual void log_image(const std::string& name, const at::Tensor& image, std::optional<int64_t> step = {});
  virtual void log_text(const std::string& name, const std::string& text, std::optional<int64_t> step = {});

  /// Writes what is held back.
  virtual void save() = 0;
  /// The run is over: "success", "failed" or "interrupted".
  virtual void finalize(const std::string& status) = 0;
  /// The folder of this run's files; empty when the logger writes none.
  virtual std::filesystem::path log_dir() const = 0;

  /// Writes what is held back and says where the log stands: what resume() needs, kept in a checkpoint.
  virtual StateDict position();
  /// The run resumes from a checkpoint: this log becomes what the log at that position was, and new rows follow. Rows
  /// behind the position are dropped when it is the same folder, and rows before it are copied when it is another.
  virtual void resume(const StateDict& position);
  /// Whether the files that a position names are still there, and are those of its run. By default yes.
  virtual bool has_log(const StateDict& position) const;
  /// Before anything is written: the run resumes from a checkpoint, in the folder it had. False, and nothing changes,
  /// when it is no folder of this logger, or the version was asked for by number. By default so.
  virtual bool reopen(const std::filesystem::path& folder);
};

struct LoggerOptions {
  /// The folder under the root; empty for none.
  std::string name = "levin_logs";
  /// The folder version_N; by default the next free one. Loggers that are given the same one share its folder.
  std::optional<int64_t> version = {};
  /// The version is for a new run only: a resumed run keeps its folder, as it does when no version is given.
  bool version_of_new_run = false;
  /// How many rows may be held back before they are written.
  int64_t flush_every_n_rows = 100;
  /// How long rows may be held back: the first row after that time takes them along.
  double flush_every_seconds = 120;
};

/// The number after the largest N of the folders root/name/version_N, 0 when there is none.
///
///     const auto version = levin::next_version("logs");
///     levin::CsvLogger csv("logs", {.version = version});
///     levin::TensorBoardLogger board("logs", {.version = version});
int64_t next_version(const std::filesystem::path& root, const std::string& name = "levin_logs");

namespace detail {

/// Writes folder/hparams.yaml, the one place where loggers do.
void write_hparams(const std::filesystem::path& folder, const StateDict& values);

}  // namespace detail
}  // namespace levin
