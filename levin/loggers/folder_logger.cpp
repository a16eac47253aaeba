#include "levin/loggers/folder_logger.h"

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/loggers/append_file.h"

namespace levin {

FolderLogger::FolderLogger(std::string kind, std::filesystem::path root, LoggerOptions options,
                           std::function<double()> clock)
    : kind_(std::move(kind)), root_(std::move(root)), options_(std::move(options)), clock_(std::move(clock)) {
  LEVIN_CHECK(options_.name.find("..") == std::string::npos && !options_.name.starts_with('/'), "[", kind_, "] name \"",
              options_.name, "\" must not leave its folder");
  LEVIN_CHECK(options_.flush_every_n_rows >= 1, "[", kind_, "] flush_every_n_rows ", options_.flush_every_n_rows,
              " must be 1 or more");
  LEVIN_CHECK(!options_.version || *options_.version >= 0, "[", kind_, "] version ", *options_.version,
              " must be 0 or more");
}

void FolderLogger::log_metrics(const Metrics& metrics, std::optional<int64_t> step) {
  rows_.add(metrics, step.value_or(count_), clock_ ? clock_() : 0);
  ++count_;
  if (static_cast<int64_t>(rows_.size()) >= options_.flush_every_n_rows ||
      std::chrono::duration<double>(Steady::now() - last_write_).count() >= options_.flush_every_seconds)
    save();
}

void FolderLogger::log_hyperparams(const StateDict& values) {
  for (const auto& [name, value] : values) hparams_[name] = value;
  detail::write_hparams(log_dir(), hparams_);
}

void FolderLogger::save() {
  last_write_ = Steady::now();
  if (rows_.empty()) return;
  rows_.read();
  write_rows(rows_);
  rows_.clear();
}

void FolderLogger::save_quietly() noexcept {
  try {
    save();
  } catch (...) {
  }
}

void FolderLogger::finalize(const std::string&) {
  save();
}

std::filesystem::path FolderLogger::log_dir() const {
  if (folder_.empty()) {
    const auto version = options_.version ? *options_.version : next_version(root_, options_.name);
    folder_ = root_ / options_.name / ("version_" + std::to_string(version));
  }
  return folder_;
}

StateDict FolderLogger::position() {
  save();
  StateDict position{{"logger", kind_}, {"folder", std::filesystem::absolute(log_dir()).string()}, {"rows", count_}};
  add_position(position);
  return position;
}

void FolderLogger::resume(const StateDict& position) {
  if (position.empty()) return;
  if (const auto& kind = position.at("logger").to_string(); kind != kind_) {
    log_warning("[" + kind_ + "] the log to resume was written by another logger, " + kind + ": this one starts empty");
    return;
  }
  rows_.forget_names();
  const std::filesystem::path old = position.at("folder").to_string();
  count_ = restore(old, position);
  std::error_code ignored;
  if (const auto hparams = log_dir() / "hparams.yaml"; !std::filesystem::exists(hparams, ignored))
    if (std::filesystem::exists(old / "hparams.yaml", ignored)) {
      detail::make_folder(log_dir());
      std::filesystem::copy_file(old / "hparams.yaml", hparams, ignored);
    }
}

bool FolderLogger::has_log(const StateDict& position) const {
  const auto* kind = position.find("logger");
  const auto* folder = position.find("folder");
  if (!kind || !folder || kind->to_string() != kind_) return true;
  std::error_code ignored;
  const std::filesystem::path old = folder->to_string();
  if (position.at("rows").to_int() == 0) return true;
  return std::filesystem::is_directory(old, ignored) && has_files(old, position);
}

bool FolderLogger::reopen(const std::filesystem::path& folder) {
  std::error_code ignored;
  if ((options_.version && !options_.version_of_new_run) || count_ > 0 ||
      !folder.filename().string().starts_with("version_") || !std::filesystem::is_directory(folder, ignored))
    return false;
  const auto own = root_ / options_.name;
  if (!std::filesystem::equivalent(folder.parent_path(), own, ignored)) return false;
  folder_ = own / folder.filename();
  return true;
}

void FolderLogger::warn_incomplete(const std::filesystem::path& file, int64_t found, int64_t expected) const {
  if (found > 0)
    log_warning(detail::concat("[", kind_, "] the log to resume, \"", file.string(), "\", has only ", found, " of ",
                               expected, " rows: this one resumes from there"));
  else
    log_warning(
        detail::concat("[", kind_, "] the log to resume, \"", file.string(), "\", is gone: this one starts empty"));
}

}  // namespace levin
