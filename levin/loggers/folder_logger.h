#pragma once

#include <chrono>
#include <functional>

#include "levin/loggers/logger.h"
#include "levin/loggers/rows.h"

namespace levin {

/// What loggers with files in root/name/version_N share: the folder, which is made by the first write, the rows held
/// back, and resuming from a position. A logger of your own derives from it and writes rows.
class FolderLogger : public Logger {
 public:
  void log_metrics(const Metrics& metrics, std::optional<int64_t> step = {}) override;
  void log_hyperparams(const StateDict& values) override;
  void save() override;
  void finalize(const std::string& status) override;
  /// The version is chosen when this is first asked, or at the first write, and stays.
  std::filesystem::path log_dir() const override;
  StateDict position() override;
  void resume(const StateDict& position) override;
  bool has_log(const StateDict& position) const override;
  bool reopen(const std::filesystem::path& folder) override;

 protected:
  /// `kind` is the logger's name in messages and positions, "csv_logger". `clock` gives the time of a row in seconds,
  /// for loggers that write it.
  FolderLogger(std::string kind, std::filesystem::path root, LoggerOptions options, std::function<double()> clock = {});

  /// Appends the rows, which have been read.
  virtual void write_rows(const detail::HeldRows& rows) = 0;
  /// Adds what restore() needs to a position. Everything is written.
  virtual void add_position(StateDict& position) = 0;
  /// Drops this log and makes it what it was at the position, from the files in `old`, which may be log_dir(). Returns
  /// how many of the position's rows are there.
  virtual int64_t restore(const std::filesystem::path& old, const StateDict& position) = 0;

  /// Whether the files in `folder` begin as they were at the position: the rows of another run must not be cut.
  virtual bool has_files(const std::filesystem::path& /*folder*/, const StateDict& /*position*/) const { return true; }

  /// save() for destructors, which have nobody to tell.
  void save_quietly() noexcept;
  /// Says in one line that the old file of a position is gone or too short.
  void warn_incomplete(const std::filesystem::path& file, int64_t found, int64_t expected) const;
  /// How many rows were logged, those of before a resume included.
  int64_t rows_logged() const { return count_; }

 private:
  using Steady = std::chrono::steady_clock;

  std::string kind_;
  std::filesystem::path root_;
  LoggerOptions options_;
  std::function<double()> clock_;
  mutable std::filesystem::path folder_;
  StateDict hparams_;
  detail::HeldRows rows_;
  int64_t count_ = 0;
  Steady::time_point last_write_ = Steady::now();
};

}  // namespace levin
