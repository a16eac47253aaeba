#pragma once

#include <map>

#include "levin/loggers/logger.h"

namespace levin {

/// metrics.csv in root/name/version_N: a column for each metric that was ever logged, sorted, and `step`; hparams.json
/// beside it.
///
///     levin::Fabric fabric({.loggers = {std::make_shared<levin::CsvLogger>("logs")}});
class CsvLogger : public Logger {
 public:
  explicit CsvLogger(std::filesystem::path root, LoggerOptions options = {});
  ~CsvLogger() override;

  void log_metrics(const Metrics& metrics, std::optional<int64_t> step = {}) override;
  void log_hyperparams(const StateDict& values) override;
  void save() override;
  void finalize(const std::string& status) override;
  std::filesystem::path log_dir() const override { return folder_; }

 private:
  using Row = std::map<std::string, double>;

  std::string line_of(const Row& row) const;

  std::filesystem::path folder_;
  LoggerOptions options_;
  std::vector<std::string> columns_;
  std::vector<Row> held_;
  int64_t rows_ = 0;
  bool header_is_written_ = false;
};

}  // namespace levin
