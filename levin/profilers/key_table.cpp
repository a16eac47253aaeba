// The table of key averages, in torch's columns.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/profilers/key_averages.h"
#include "levin/profilers/table.h"

namespace levin {
namespace {

struct SortKey {
  const char* name;
  double (*value)(const KeyAverage&);
};

template <auto kMember>
double member(const KeyAverage& row) {
  return static_cast<double>(row.*kMember);
}

constexpr std::array kSortKeys{
    SortKey{"cpu_time", [](const KeyAverage& row) { return row.cpu_average(); }},
    SortKey{"cuda_time", [](const KeyAverage& row) { return row.device_average(); }},
    SortKey{"cpu_time_total", member<&KeyAverage::cpu_total>},
    SortKey{"cuda_time_total", member<&KeyAverage::device_total>},
    SortKey{"self_cpu_time_total", member<&KeyAverage::self_cpu>},
    SortKey{"self_cuda_time_total", member<&KeyAverage::self_device>},
    SortKey{"cpu_memory_usage", member<&KeyAverage::cpu_memory>},
    SortKey{"cuda_memory_usage", member<&KeyAverage::device_memory>},
    SortKey{"self_cpu_memory_usage", member<&KeyAverage::self_cpu_memory>},
    SortKey{"self_cuda_memory_usage", member<&KeyAverage::self_device_memory>},
    SortKey{"flops", member<&KeyAverage::flops>},
    SortKey{"count", member<&KeyAverage::calls>},
};

std::string time_text(double nanoseconds) {
  const double us = nanoseconds / 1e3;
  if (us >= 1e6) return fmt::format("{:.3f}s", us / 1e6);
  if (us >= 1e3) return fmt::format("{:.3f}ms", us / 1e3);
  return fmt::format("{:.3f}us", us);
}

std::string memory_text(int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (std::abs(size) >= 1024.0 * 1024 * 1024) return fmt::format("{:.2f} GB", size / (1024.0 * 1024 * 1024));
  if (std::abs(size) >= 1024.0 * 1024) return fmt::format("{:.2f} MB", size / (1024.0 * 1024));
  if (std::abs(size) >= 1024.0) return fmt::format("{:.2f} KB", size / 1024.0);
  return fmt::format("{} B", bytes);
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.2f}%", 100 * part / whole) : std::string("NaN");
}

std::string cut(const std::string& text, int64_t width) {
  if (width < 4 || static_cast<int64_t>(detail::count_characters(text)) <= width) return text;
  auto end = static_cast<size_t>(width - 3);
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not within a character
  return text.substr(0, end) + "...";
}

struct Column {
  std::string title;
  bool is_text = false;
  std::vector<std::string> cells = {};
};

struct Sums {
  double self_cpu = 0, self_device = 0, flops = 0;
  bool device = false, memory = false, device_memory = false, shapes = false, units = false, stacks = false;

  explicit Sums(const std::vector<KeyAverage>& rows) {
    for (const auto& row : rows) {
      self_cpu += static_cast<double>(row.self_cpu);
      if (row.on_device && !row.is_annotation) self_device += static_cast<double>(row.self_device);
      flops = std::max(flops, static_cast<double>(row.flops));
      device |= row.on_device || row.self_device > 0;
      memory |= row.cpu_memory != 0 || row.device_memory != 0;
      device_memory |= row.device_memory != 0;
      shapes |= !row.input_shapes.empty();
      units |= !row.unit.empty();
      stacks |= !row.stack.empty();
    }
  }
};

/// "GFLOPs" and what to divide by, so that the largest has one to three digits before the point.
std::pair<std::string, double> flops_unit(double largest) {
  static constexpr std::array<const char*, 6> kUnits{"FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"};
  const auto thousands = static_cast<size_t>(std::clamp(std::floor(std::log10(std::max(largest, 1.0)) / 3), 0.0, 5.0));
  return {kUnits[thousands], std::pow(1000.0, static_cast<double>(thousands))};
}

std::vector<Column> columns_of(const std::vector<KeyAverage>& rows, const Sums& sums, const KeyTableOptions& options) {
  std::vector<Column> columns;
  const auto add = [&](std::string title, auto&& cell, bool is_text = false) {
    Column column{std::move(title), is_text};
    for (const auto& row : rows) column.cells.push_back(cell(row));
    columns.push_back(std::move(column));
  };
  const auto time = [&](const char* title, auto value) {
    add(title, [&](const KeyAverage& row) { return time_text(static_cast<double>(value(row))); });
  };
  const auto memory = [&](const char* title, int64_t KeyAverage::*value) {
    add(title, [&](const KeyAverage& row) { return memory_text(row.*value); });
  };
  using Row = const KeyAverage&;
  add(
      "Name", [&](Row row) { return cut(row.name, options.max_name_width); }, true);
  if (sums.units)
    add(
        "Unit", [&](Row row) { return cut(row.unit, options.max_name_width); }, true);
  add("Self CPU %", [&](Row row) { return percent(static_cast<double>(row.self_cpu), sums.self_cpu); });
  time("Self CPU", [](Row row) { return row.self_cpu; });
  add("CPU total %", [&](Row row) { return percent(static_cast<double>(row.cpu_total), sums.self_cpu); });
  time("CPU total", [](Row row) { return row.cpu_total; });
  time("CPU time avg", [](Row row) { return row.cpu_average(); });
  if (sums.device) {
    time("Self CUDA", [](Row row) { return row.self_device; });
    add("Self CUDA %", [&](Row row) { return percent(static_cast<double>(row.self_device), sums.self_device); });
    time("CUDA total", [](Row row) { return row.device_total; });
    time("CUDA time avg", [](Row row) { return row.device_average(); });
  }
  if (sums.memory) {
    memory("CPU Mem", &KeyAverage::cpu_memory);
    memory("Self CPU Mem", &KeyAverage::self_cpu_memory);
  }
  if (sums.device_memory) {
    memory("CUDA Mem", &KeyAverage::device_memory);
    memory("Self CUDA Mem", &KeyAverage::self_device_memory);
  }
  add("# of Calls", [](Row row) { return std::to_string(row.calls); });
  if (sums.shapes)
    add(
        "Input Shapes", [](Row row) { return cut(row.input_shapes, 80); }, true);
  if (sums.stacks)
    add(
        "Source Location", [](Row row) { return cut(row.stack, 160); }, true);
  if (sums.flops > 0) {
    const auto [unit, scale] = flops_unit(sums.flops);
    add("Total " + unit, [scale = scale](Row row) {
      return row.flops > 0 ? fmt::format("{:.3f}", static_cast<double>(row.flops) / scale) : std::string("--");
    });
  }
  return columns;
}

std::string lines_of(const std::vector<Column>& columns, size_t rows) {
  constexpr size_t kGap = 2;
  std::vector<size_t> widths;
  for (const auto& column : columns) {
    auto width = detail::count_characters(column.title);
    for (const auto& cell : column.cells) width = std::max(width, detail::count_characters(cell));
    widths.push_back(width);
  }
  std::string rule;
  for (const auto width : widths) rule += std::string(width, '-') + std::string(kGap, ' ');
  rule += '\n';
  const auto line = [&](auto&& cell) {
    std::string text;
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::string content = cell(columns[c]);
      const std::string space(widths[c] - detail::count_characters(content), ' ');
      text += (columns[c].is_text ? content + space : space + content) + std::string(kGap, ' ');
    }
    return text + '\n';
  };
  auto text = rule + line([](const Column& column) { return column.title; }) + rule;
  for (size_t r = 0; r < rows; ++r) text += line([&](const Column& column) { return column.cells[r]; });
  return text + rule;
}

}  // namespace

std::vector<std::string> key_table_columns() {
  std::vector<std::string> names;
  for (const auto& key : kSortKeys) names.emplace_back(key.name);
  return names;
}

std::string key_table(std::vector<KeyAverage> rows, const KeyTableOptions& options) {
  const Sums sums(rows);
  auto sort_by = options.sort_by.empty() ? (sums.device ? "cuda_time_total" : "cpu_time_total") : options.sort_by;
  if (const auto at = sort_by.find("device_"); at != std::string::npos) sort_by.replace(at, 6, "cuda");
  const auto* key = std::find_if(kSortKeys.begin(), kSortKeys.end(),
                                 [&](const SortKey& candidate) { return sort_by == candidate.name; });
  if (key == kSortKeys.end()) fail_unknown("profiler", "sort_by", options.sort_by, key_table_columns());
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const KeyAverage& a, const KeyAverage& b) { return key->value(a) > key->value(b); });
  if (options.row_limit >= 0 && rows.size() > static_cast<size_t>(options.row_limit))
    rows.resize(static_cast<size_t>(options.row_limit));
  auto text = lines_of(columns_of(rows, sums, options), rows.size());
  text += fmt::format("Self CPU time total: {}\n", time_text(sums.self_cpu));
  if (sums.device) text += fmt::format("Self CUDA time total: {}\n", time_text(sums.self_device));
  return text;
}

}  // namespace levin
