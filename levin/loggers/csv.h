#pragma once

#include "levin/loggers/append_file.h"
#include "levin/loggers/folder_logger.h"

namespace levin {

/// metrics.csv in root/name/version_N: a column for each metric that was ever logged, sorted, and `step`, in the bytes
/// that Lightning's CSVLogger writes; hparams.yaml beside it. Rows are appended; a new column rewrites the file. A
/// version that is named and has a file is resumed.
///
///     levin::Fabric fabric({.loggers = {std::make_shared<levin::CsvLogger>("logs")}});
class CsvLogger : public FolderLogger {
 public:
  explicit CsvLogger(std::filesystem::path root, LoggerOptions options = {});
  ~CsvLogger() override;

 protected:
  void write_rows(const detail::HeldRows& rows) override;
  void add_position(StateDict& position) override;
  int64_t restore(const std::filesystem::path& old, const StateDict& position) override;
  bool has_files(const std::filesystem::path& folder, const StateDict& position) const override;

 private:
  void open();
  bool add_columns(const detail::HeldRows& rows);
  std::string lines_of(const detail::HeldRows& rows) const;

  detail::AppendFile file_;
  /// As in the file, sorted; empty when there is none.
  std::vector<std::string> columns_;
  int64_t rows_in_file_ = 0;
};

}  // namespace levin
