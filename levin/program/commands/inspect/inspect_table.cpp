#include "levin/program/commands/inspect/inspect_table.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/core/progress_bar.h"
#include "levin/core/words.h"
#include "levin/program/commands/name_patterns.h"
#include "levin/program/flags.h"

namespace levin::cli {
namespace {

std::string inspect_shape(const WeightEntry& entry) {
  return fmt::format("[{}]", fmt::join(entry.shape, ", "));
}

}  // namespace

std::optional<WeightStats> stats_of(const Tensor& tensor) {
  if (tensor.numel() == 0 || tensor.is_complex()) return {};
  const auto values = tensor.to(at::kDouble).flatten();
  const auto is_nan = values.isnan();
  WeightStats stats;
  stats.nan = is_nan.sum().item<int64_t>();
  const auto numbers = stats.nan == 0 ? values : values.masked_select(is_nan.logical_not());
  if (numbers.numel() == 0) return stats;
  stats.mean = numbers.mean().item<double>();
  stats.std = numbers.numel() > 1 ? numbers.std().item<double>() : 0;
  stats.min = numbers.min().item<double>();
  stats.max = numbers.max().item<double>();
  return stats;
}

std::vector<InspectRow> choose_rows(std::vector<InspectRow> rows, const InspectFlags& flags) {
  std::erase_if(rows, [&](const InspectRow& row) { return !passes(row.entry.name, flags.filter); });
  if (flags.sort == "name")
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.entry.name < b.entry.name; });
  if (flags.sort == "size")
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto& a, const auto& b) { return a.entry.bytes > b.entry.bytes; });
  return rows;
}

void add_stats(std::vector<InspectRow>& rows, const std::function<Tensor(const std::string&)>& read) {
  ProgressBar bar("reading", static_cast<int64_t>(rows.size()), {.unit = "tensors", .keep = false});
  for (auto& row : rows) {
    if (row.entry.type != c10::ScalarType::Undefined) row.stats = stats_of(read(row.entry.name));
    bar.advance();
  }
}

std::string table_text(const std::vector<InspectRow>& rows, bool with_stats) {
  size_t name_width = 4, dtype_width = 5, shape_width = 5;
  bool held = false;
  for (const auto& row : rows) {
    name_width = std::max(name_width, row.entry.name.size());
    dtype_width = std::max(dtype_width, row.entry.dtype.size());
    shape_width = std::max(shape_width, inspect_shape(row.entry).size());
    held = held || !row.held.empty();
  }
  std::string out = fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>9}", "name", name_width, "dtype", dtype_width, "shape",
                                shape_width, "bytes");
  if (with_stats) out += fmt::format("  {:>10}  {:>10}  {:>10}  {:>10}  {:>5}", "mean", "std", "min", "max", "nan");
  if (held) out += "  in";
  out += '\n';
  for (const auto& [entry, holders, stats] : rows) {
    out += fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>9}", printable(entry.name), name_width, entry.dtype, dtype_width,
                       inspect_shape(entry), shape_width, format_bytes(static_cast<double>(entry.bytes)));
    if (stats)
      out += fmt::format("  {:>10.4g}  {:>10.4g}  {:>10.4g}  {:>10.4g}  {:>5}", stats->mean, stats->std, stats->min,
                         stats->max, stats->nan);
    else if (with_stats && held)
      out += fmt::format("  {:>10}  {:>10}  {:>10}  {:>10}  {:>5}", "", "", "", "", "");
    if (held) out += "  " + printable(holders);
    out += '\n';
  }
  return out;
}

std::string total_text(const std::vector<InspectRow>& rows) {
  double numbers = 0;
  double bytes = 0;
  for (const auto& row : rows) {
    numbers += static_cast<double>(row.entry.numel());
    bytes += static_cast<double>(row.entry.bytes);
  }
  return fmt::format("{} with {} elements in {}", counted(static_cast<int64_t>(rows.size()), "tensor"),
                     format_count(numbers), format_bytes(bytes));
}

}  // namespace levin::cli
