#include "levin/loggers/json_lines.h"

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/loggers/json.h"

namespace levin {

JsonLinesLogger::JsonLinesLogger(std::filesystem::path root, LoggerOptions options)
    : folder_(detail::version_folder(root, options.name, options.version)), options_(std::move(options)) {}

void JsonLinesLogger::log_metrics(const Metrics& metrics, std::optional<int64_t> step) {
  const auto path = folder_ / "metrics.jsonl";
  if (!file_.is_open()) {
    std::filesystem::create_directories(folder_);
    file_.open(path, std::ios::app);
  }
  std::string line = "{\"step\": " + std::to_string(step.value_or(rows_));
  for (const auto& [name, value] : metrics)
    line += ", " + detail::json_string(name) + ": " + detail::json_number(detail::metric_value(name, value));
  file_ << line << "}\n";
  if (++rows_ % options_.flush_every_n_rows == 0) save();
  LEVIN_CHECK(file_.good(), "[json_lines_logger] cannot write \"", path.string(), "\"");
}

void JsonLinesLogger::log_hyperparams(const StateDict& values) {
  std::filesystem::create_directories(folder_);
  write_file(folder_ / "hparams.json", detail::to_json(values));
}

void JsonLinesLogger::save() {
  file_.flush();
}

void JsonLinesLogger::finalize(const std::string&) {
  save();
}

}  // namespace levin
