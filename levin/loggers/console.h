#pragma once

#include <cstdio>

#include "levin/loggers/logger.h"

namespace levin {

/// Rows as lines for people. A row is printed at once, and a value on a device is waited for.
///
///     Epoch: 0001/0010 | Batch 0000/2812 | Loss: 2.3972
///
/// `epoch` among the metrics counts from 0. Without totals: `Epoch: 0001 | Step 00123 | Loss: 2.3972`.
class ConsoleLogger : public Logger {
 public:
  explicit ConsoleLogger(std::FILE* file = stdout) : file_(file) {}

  void set_totals(int64_t epochs, int64_t batches_per_epoch) override;
  void log_metrics(const Metrics& metrics, std::optional<int64_t> step = {}) override;
  void log_hyperparams(const StateDict&) override {}
  void log_text(const std::string& name, const std::string& text, std::optional<int64_t> step = {}) override;
  void save() override;
  void finalize(const std::string&) override { save(); }
  std::filesystem::path log_dir() const override { return {}; }
  StateDict position() override;
  void resume(const StateDict& position) override;

 private:
  std::string place(std::optional<int64_t> epoch, int64_t step) const;
  void print(const std::string& line);

  std::FILE* file_;
  int64_t epochs_ = 0;
  int64_t batches_ = 0;
  int64_t rows_ = 0;
};

}  // namespace levin
