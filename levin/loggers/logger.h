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

/// Names and numbers; a tensor of one element is read only when a logger needs its value.
using Metrics = std::vector<std::pair<std::string, std::variant<double, at::Tensor>>>;

/// Where metrics go. Only rank 0 calls.
class Logger {
 public:
  virtual ~Logger() = default;

  /// A row of metrics. Without a step the logger counts its rows.
  virtual void log_metrics(const Metrics& metrics, std::optional<int64_t> step = {}) = 0;
  virtual void log_hyperparams(const StateDict& values) = 0;
  /// Writes what is held back.
  virtual void save() = 0;
  /// The run is over: "success", "failed" or "interrupted".
  virtual void finalize(const std::string& status) = 0;
  virtual StateDict position() { return {}; }
  virtual void resume(const StateDict&) {}
  /// The folder of this run's files.
  virtual std::filesystem::path log_dir() const = 0;
};

namespace detail {

/// root/name/version_N: the version given, or the first that is free.
std::filesystem::path version_folder(const std::filesystem::path& root, const std::string& name,
                                     std::optional<int64_t> version);
double metric_value(const std::string& name, const std::variant<double, at::Tensor>& value);

}  // namespace detail

struct LoggerOptions {
  std::string name = "levin_logs";
  /// The folder version_N; by itself the next free one.
  std::optional<int64_t> version = {};
  /// How many rows may be held back before they are written.
  int64_t flush_every_n_rows = 100;
};

}  // namespace levin
