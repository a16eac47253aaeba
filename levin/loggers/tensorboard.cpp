#include "levin/loggers/tensorboard.h"

#include <chrono>

#include <fmt/format.h>
#include <unistd.h>

#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/host.h"
#include "levin/core/log.h"
#include "levin/loggers/events.h"
#include "levin/loggers/pixels.h"
#include "levin/loggers/records.h"

namespace levin {
namespace {

double system_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TensorBoardOptions with_clock(TensorBoardOptions options) {
  if (!options.clock) options.clock = system_seconds;
  return options;
}

}  // namespace

TensorBoardLogger::TensorBoardLogger(std::filesystem::path root, LoggerOptions options, TensorBoardOptions board)
    : FolderLogger("tensorboard_logger", std::move(root), std::move(options), with_clock(board).clock),
      board_(with_clock(std::move(board))) {}

TensorBoardLogger::~TensorBoardLogger() {
  save_quietly();
}

std::filesystem::path TensorBoardLogger::new_file() const {
  const auto start =
      fmt::format("events.out.tfevents.{:010}.{}.{}.", static_cast<int64_t>(board_.clock()), host_name(), ::getpid());
  for (int n = 0;; ++n) {
    auto path = log_dir() / (start + std::to_string(n));
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) return path;
  }
}

void TensorBoardLogger::open() {
  if (file_.is_open()) return;
  file_.open(new_file(), 0);
  std::string record;
  detail::append_record(record, detail::version_event(board_.clock()).bytes());
  file_.write(record);
  records_ = 1;
}

void TensorBoardLogger::write_rows(const detail::HeldRows& rows) {
  open();
  std::string bytes;
  int64_t records = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = rows.row(i);
    for (const auto& cell : row.cells) {
      const auto summary = detail::scalar_summary(rows.names()[cell.name], detail::to_double(cell.value));
      detail::append_record(bytes, detail::summary_event(row.time, row.step, summary).bytes());
      ++records;
    }
  }
  file_.write(bytes);
  records_ += records;
}

void TensorBoardLogger::write_now(std::optional<int64_t> step, const detail::Message& summary) {
  save();  // events stay in the order in which they were logged
  open();
  std::string record;
  detail::append_record(record, detail::summary_event(board_.clock(), step.value_or(rows_logged()), summary).bytes());
  file_.write(record);
  ++records_;
}

void TensorBoardLogger::log_histogram(const std::string& name, const at::Tensor& values, std::optional<int64_t> step) {
  LEVIN_CHECK(values.defined() && values.numel() > 0 && !values.is_complex(), "[log_histogram] \"", name,
              "\" must be a tensor of one or more real numbers");
  const auto histogram = detail::make_histogram(values);
  if (histogram.limits.empty())
    warn_once("[log_histogram] \"" + name + "\" has no finite value: it is not written");
  else
    write_now(step, detail::histogram_summary(name, histogram));
}

void TensorBoardLogger::log_image(const std::string& name, const at::Tensor& image, std::optional<int64_t> step) {
  write_now(step, detail::image_summary(name, detail::to_pixels(name, image)));
}

void TensorBoardLogger::log_text(const std::string& name, const std::string& text, std::optional<int64_t> step) {
  write_now(step, detail::text_summary(name, text));
}

void TensorBoardLogger::log_hyperparams(const StateDict& values) {
  FolderLogger::log_hyperparams(values);
  if (board_.default_hp_metric) write_hparams_events(values, {{"hp_metric", -1}}, 0);
}

void TensorBoardLogger::log_hyperparams(const StateDict& values, const Metrics& metrics, std::optional<int64_t> step) {
  FolderLogger::log_hyperparams(values);
  write_hparams_events(values, metrics, step);
}

void TensorBoardLogger::write_hparams_events(const StateDict& values, const Metrics& metrics,
                                             std::optional<int64_t> step) {
  if (metrics.empty()) return;
  detail::HeldRows row;
  row.add(metrics, 0, 0);
  row.read();
  auto summaries = detail::hparams_summaries(values, row.names());
  for (size_t i = 0; const auto& cell : row.row(0).cells)
    summaries.insert(summaries.begin() + static_cast<int64_t>(i++),
                     detail::scalar_summary(row.names()[cell.name], detail::to_double(cell.value)));
  uint32_t checksum = 0;
  for (const auto& summary : summaries) checksum = crc32c(summary.bytes(), checksum);
  if (checksum_text(checksum) == hparams_checksum_) return;
  for (const auto& summary : summaries) write_now(step, summary);
  hparams_checksum_ = checksum_text(checksum);
}

void TensorBoardLogger::add_position(StateDict& position) {
  open();  // so that the position names the file
  file_.sync();
  position["file"] = file_.path().filename().string();
  position["bytes"] = file_.size();
  position["records"] = records_;
  position["hparams"] = hparams_checksum_;
}

bool TensorBoardLogger::has_files(const std::filesystem::path& folder, const StateDict& position) const {
  std::error_code ignored;
  return std::filesystem::exists(folder / position.at("file").to_string(), ignored);
}

int64_t TensorBoardLogger::restore(const std::filesystem::path& old, const StateDict& position) {
  const auto bytes = static_cast<uint64_t>(position.at("bytes").to_int());
  const auto records = position.at("records").to_int();
  const auto from = old / position.at("file").to_string();
  const auto own = file_.is_open() ? file_.path() : std::filesystem::path();
  file_.close();
  records_ = 0;
  hparams_checksum_.clear();
  std::error_code ignored;
  const bool is_own = !own.empty() && std::filesystem::equivalent(own, from, ignored);
  if (!own.empty() && !is_own) std::filesystem::remove(own, ignored);
  if (!std::filesystem::exists(from, ignored)) {
    warn_incomplete(from, 0, records);
    return 0;
  }
  const auto to = std::filesystem::equivalent(old, log_dir(), ignored) ? from : own.empty() ? new_file() : own;
  if (detail::take_prefix(from, to, bytes) == bytes) {
    file_.open(to);
    records_ = records;
    hparams_checksum_ = position.at("hparams").to_string();
    return position.at("rows").to_int();
  }
  const auto whole = detail::whole_records(read_file(to, UINT64_MAX));
  warn_incomplete(from, whole.count, records);
  file_.open(to, whole.bytes);
  records_ = whole.count;
  if (whole.count == 0) {
    file_.close();
    std::filesystem::remove(to, ignored);
  }
  return whole.count;
}

}  // namespace levin
