#pragma once

#include <fstream>

#include "levin/loggers/logger.h"

namespace levin {

/// metrics.jsonl in root/name/version_N: one JSON object a row, {"step": 3, "loss": 0.25}. Easy to follow while it
/// grows.
class JsonLinesLogger : public Logger {
 public:
  explicit JsonLinesLogger(std::filesystem::path root, LoggerOptions options = {});

  void log_metrics(const Metrics& metrics, std::optional<int64_t> step = {}) override;
  void log_hyperparams(const StateDict& values) override;
  void save() override;
  void finalize(const std::string& status) override;
  std::filesystem::path log_dir() const override { return folder_; }

 private:
  std::filesystem::path folder_;
  LoggerOptions options_;
  std::ofstream file_;
  int64_t rows_ = 0;
};

}  // namespace levin
