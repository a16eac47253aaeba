#pragma once

#include "levin/loggers/append_file.h"
#include "levin/loggers/folder_logger.h"

namespace levin {

/// metrics.jsonl in root/name/version_N: one JSON object a row, {"step": 3, "loss": 0.25}. Easy to follow while it
/// grows. hparams.yaml beside it.
class JsonLinesLogger : public FolderLogger {
 public:
  explicit JsonLinesLogger(std::filesystem::path root, LoggerOptions options = {});
  ~JsonLinesLogger() override;

 protected:
  void write_rows(const detail::HeldRows& rows) override;
  void add_position(StateDict& position) override;
  int64_t restore(const std::filesystem::path& old, const StateDict& position) override;
  bool has_files(const std::filesystem::path& folder, const StateDict& position) const override;

 private:
  detail::AppendFile file_;
};

}  // namespace levin
