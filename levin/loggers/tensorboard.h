#pragma once

#include "levin/loggers/append_file.h"
#include "levin/loggers/folder_logger.h"

namespace levin {

namespace detail {
class Message;
}

struct TensorBoardOptions {
  /// Hyperparameters come with a metric `hp_metric` of -1, without which the HParams tab shows nothing.
  bool default_hp_metric = true;
  /// The time of an event, in seconds since 1970; by default the system's clock.
  std::function<double()> clock = {};
};

/// An event file for TensorBoard in root/name/version_N: scalars, histograms, images, texts and hyperparameters, in the
/// messages that torch.utils.tensorboard writes; hparams.yaml beside it. Rows of scalars are held back, all else is
/// written at once, behind them.
///
///     levin::Fabric fabric({.loggers = {std::make_shared<levin::TensorBoardLogger>("logs")}});
class TensorBoardLogger : public FolderLogger {
 public:
  explicit TensorBoardLogger(std::filesystem::path root, LoggerOptions options = {}, TensorBoardOptions board = {});
  ~TensorBoardLogger() override;

  /// Values that were logged before, also before a resume, are not written again.
  void log_hyperparams(const StateDict& values) override;
  /// With the metrics that the HParams tab shows beside them.
  void log_hyperparams(const StateDict& values, const Metrics& metrics, std::optional<int64_t> step = {});
  void log_histogram(const std::string& name, const at::Tensor& values, std::optional<int64_t> step = {}) override;
  void log_image(const std::string& name, const at::Tensor& image, std::optional<int64_t> step = {}) override;
  void log_text(const std::string& name, const std::string& text, std::optional<int64_t> step = {}) override;

 protected:
  void write_rows(const detail::HeldRows& rows) override;
  void add_position(StateDict& position) override;
  int64_t restore(const std::filesystem::path& old, const StateDict& position) override;
  bool has_files(const std::filesystem::path& folder, const StateDict& position) const override;

 private:
  void open();
  std::filesystem::path new_file() const;
  void write_now(std::optional<int64_t> step, const detail::Message& summary);
  void write_hparams_events(const StateDict& values, const Metrics& metrics, std::optional<int64_t> step);

  TensorBoardOptions board_;
  detail::AppendFile file_;
  int64_t records_ = 0;
  /// Of the hyperparameters written last.
  std::string hparams_checksum_;
};

}  // namespace levin
