#include "levin/loggers/console.h"

#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "levin/loggers/rows.h"

namespace levin {
namespace {

// Four digits behind the point, unless they would all be zeros (a learning rate) or too many stand before it.
std::string shown(const detail::Number& number) {
  if (const auto* integer = std::get_if<int64_t>(&number)) return fmt::format("{}", *integer);
  if (const auto* truth = std::get_if<bool>(&number)) return *truth ? "yes" : "no";
  const auto value = std::get<double>(number);
  const auto size = std::abs(value);
  if (std::isnan(value)) return "nan";
  return (size != 0 && size < 1e-3) || size >= 1e9 ? fmt::format("{:.4g}", value) : fmt::format("{:.4f}", value);
}

std::string capitalised(std::string name) {
  if (!name.empty()) name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return name;
}

}  // namespace

void ConsoleLogger::set_totals(int64_t epochs, int64_t batches_per_epoch) {
  epochs_ = epochs;
  batches_ = batches_per_epoch;
}

std::string ConsoleLogger::place(std::optional<int64_t> epoch, int64_t step) const {
  if (!epoch && batches_ > 0) epoch = step / batches_;
  std::string text;
  if (epoch) {
    text = fmt::format("Epoch: {:04}", *epoch + 1);
    if (epochs_ > 0) text += fmt::format("/{:04}", epochs_);
    text += " | ";
  }
  return text +
         (batches_ > 0 ? fmt::format("Batch {:04}/{:04}", step % batches_, batches_) : fmt::format("Step {:05}", step));
}

void ConsoleLogger::log_metrics(const Metrics& metrics, std::optional<int64_t> step) {
  detail::HeldRows held;
  held.add(metrics, step.value_or(rows_), 0);
  held.read();
  ++rows_;
  const auto row = held.row(0);
  std::optional<int64_t> epoch;
  std::string values;
  for (const auto& cell : row.cells) {
    const auto& name = held.names()[cell.name];
    if (name == "epoch")
      epoch = static_cast<int64_t>(detail::to_double(cell.value));
    else
      values += " | " + capitalised(name) + ": " + shown(cell.value);
  }
  print(place(epoch, row.step) + values);
}

void ConsoleLogger::log_text(const std::string& name, const std::string& text, std::optional<int64_t>) {
  print(capitalised(name) + ": " + text);
}

void ConsoleLogger::print(const std::string& line) {
  std::fprintf(file_, "%s\n", line.c_str());
  std::fflush(file_);
}

void ConsoleLogger::save() {
  std::fflush(file_);
}

StateDict ConsoleLogger::position() {
  save();
  return {{"logger", "console_logger"}, {"rows", rows_}};
}

void ConsoleLogger::resume(const StateDict& position) {
  if (const auto* rows = position.find("rows")) rows_ = rows->to_int();
}

}  // namespace levin
