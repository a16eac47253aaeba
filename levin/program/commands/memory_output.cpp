// The rows of `levin memory` as a table, CSV, JSON and a plot.
#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/words.h"
#include "levin/plots/bar_plot.h"
#include "levin/program/commands/memory_language.h"
#include "levin/program/commands/memory_rows.h"
#include "levin/program/flags.h"

namespace levin::cli {
namespace {

std::vector<std::pair<const char*, int64_t>> columns_of(const MemoryEstimate& e) {
  return {{"parameters", e.parameters},
          {"gradients", e.gradients},
          {"optimizer", e.optimizer},
          {"activations", e.activations},
          {"temporary", e.temporary},
          {"peak", e.device_peak},
          {"host", e.host}};
}

size_t column_width(std::string_view name) {
  return std::max<size_t>(name.size(), 7) + 2;
}

const std::string& table_name(const MemoryRow& row) {
  return row.rung.empty() ? row.name : row.rung;
}

std::string bytes_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

}  // namespace

void print_memory_table(const MemoryStep& step, const std::vector<MemoryRow>& rows) {
  size_t width = 0;
  for (const auto& row : rows) width = std::max(width, table_name(row).size());
  auto out = fmt::format("{}: {} parameters, {}, on each rank\n\n", step.model,
                         format_count(static_cast<double>(rows[0].estimate.num_parameters)), step.to_string());
  out += fmt::format("{:<{}}", "", width);
  for (const auto& [name, bytes] : columns_of({})) out += fmt::format("{:>{}}", name, column_width(name));
  out += "  in\n";
  for (const auto& row : rows) {
    out += fmt::format("{:<{}}", table_name(row), width);
    for (const auto& [name, bytes] : columns_of(row.estimate))
      out += fmt::format("{:>{}}", bytes == 0 ? "-" : bytes_text(bytes), column_width(name));
    out += fmt::format("  {}\n", to_string(row.estimate.peak_part));
  }
  if (rows.size() == 1) {
    const auto& only = rows[0].estimate;
    out += fmt::format("\nPeak: {} on the device, in {}; {} in host memory.\n", bytes_text(only.device_peak),
                       to_string(only.peak_part), only.host > 0 ? bytes_text(only.host) : "nothing");
  }
  std::fputs(out.c_str(), stdout);
}

void print_memory_csv(const std::vector<MemoryRow>& rows) {
  std::string out = "configuration";
  for (const auto& [name, bytes] : columns_of({})) out += fmt::format(",{}", name);
  out += ",peak_part\n";
  for (const auto& row : rows) {
    out += row.name.find(',') == std::string::npos ? row.name : '"' + row.name + '"';  // names of meshes
    for (const auto& [name, bytes] : columns_of(row.estimate)) out += fmt::format(",{}", bytes);
    out += fmt::format(",{}\n", to_string(row.estimate.peak_part));
  }
  std::fputs(out.c_str(), stdout);
}

void print_memory_json(const MemoryStep& step, const std::vector<MemoryRow>& rows) {
  nlohmann::ordered_json json{
      {"model", step.model}, {"num_parameters", rows[0].estimate.num_parameters}, {"batch", step.batch}};
  if (step.is_text())
    json["sequence_length"] = *step.sequence_length;
  else
    json["image_size"] = *step.image_size;
  json["optimizer"] = step.optimizer;
  if (!step.quantize.empty()) json["quantize"] = step.quantize;
  if (step.lora > 0) json["lora"] = step.lora;
  json["accelerator"] = step.accelerator;
  for (const auto& row : rows) {
    nlohmann::ordered_json item{{"name", row.name},
                                {"strategy", row.question.strategy},
                                {"precision", row.question.precision},
                                {"devices", row.question.world_size},
                                {"checkpointing", row.question.checkpoint_blocks},
                                {"offload", row.question.offload}};
    for (const auto& [name, bytes] : columns_of(row.estimate)) item[name] = bytes;
    item["peak_part"] = to_string(row.estimate.peak_part);
    json["rows"].push_back(std::move(item));
  }
  std::puts(json.dump(2).c_str());
}

void print_inference(const MemoryStep& step, bool json, bool csv) {
  const auto memory = estimate_inference(step);
  if (csv) {
    fmt::print("weights,cache,temporary,peak\n{},{},{},{}\n", memory.weights, memory.cache, memory.temporary,
               memory.total());
    return;
  }
  if (json) {
    const nlohmann::ordered_json out{{"model", step.model},           {"num_parameters", memory.parameters},
                                     {"batch", step.batch},           {"sequence_length", *step.sequence_length},
                                     {"quantize", step.quantize},     {"precision", step.precision},
                                     {"weights", memory.weights},     {"cache", memory.cache},
                                     {"temporary", memory.temporary}, {"peak", memory.total()}};
    std::puts(out.dump(2).c_str());
    return;
  }
  fmt::print("{}: {} parameters, {} of {}, {}{}\n\n", step.model, format_count(static_cast<double>(memory.parameters)),
             counted(step.batch, "sequence"), counted(*step.sequence_length, "token"), step.precision,
             step.quantize.empty() ? "" : ", linear layers in " + step.quantize);
  for (const auto& [name, bytes] : {std::pair("weights", memory.weights), std::pair("keys and values", memory.cache),
                                    std::pair("temporary", memory.temporary), std::pair("peak", memory.total())})
    fmt::print("{:<16}{:>10}\n", name, bytes == 0 ? "-" : bytes_text(bytes));
}

void plot_memory_peaks(const std::string& path, const MemoryStep& step, const std::vector<MemoryRow>& rows) {
  const auto ranks = step.devices > 1 ? fmt::format(", on each of {} ranks", step.devices) : std::string();
  BarPlot plot{.title = fmt::format("{}: peak of device memory in a training step", step.model),
               .subtitle = step.to_string() + ranks};
  for (const auto& row : rows)
    plot.bars.push_back(
        {row.label, static_cast<double>(row.estimate.device_peak), bytes_text(row.estimate.device_peak)});
  write_drawing(path, picture_of(plot));
}

}  // namespace levin::cli
