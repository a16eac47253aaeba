#include <algorithm>
#include <cstdio>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "levin/cli/command.h"
#include "levin/cli/weight_flags.h"
#include "levin/core/progress.h"
#include "levin/core/words.h"
#include "levin/io/weights.h"
#include "levin/models/naming.h"

namespace levin::cli {
namespace {

constexpr const char* kInspectHelp =
    "Shows what is in a weight file: names, dtypes, shapes, bytes, metadata. Nothing in it is run.\n"
    "Usage: levin inspect FILE [FLAGS]\n\n"
    "  FILE            .safetensors, .pt, .pth, .bin, .ckpt, an index of several, or a folder with one of these\n"
    "  --filter GLOB   only names such as \"encoder.*\"; may come again, and !GLOB leaves names out\n"
    "  --sort WORD     name or size (largest first); else the order of the file\n"
    "  --stats         read the tensors too: mean, standard deviation, smallest, largest, how many are NaN\n"
    "  --root NAME     the part of a torch file to take (state_dict); \"\" for all of it (auto)\n"
    "  --json          for programs\n";

struct WeightStats {
  double mean = 0, std = 0, min = 0, max = 0;
  int64_t nan = 0;
};

/// Of a tensor of numbers; NaN are counted and left out of the rest.
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

struct InspectRow {
  const WeightEntry* entry;
  std::optional<WeightStats> stats;
};

/// Names come from files: what a terminal would obey is not printed.
std::string inspect_text(std::string_view text) {
  std::string result;
  for (const char c : text) result += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? '?' : c;
  return result;
}

std::string inspect_shape(const WeightEntry& entry) {
  return fmt::format("[{}]", fmt::join(entry.shape, ", "));
}

void print_table(const WeightFile& file, const std::vector<InspectRow>& rows, bool with_stats) {
  size_t name_width = 4, dtype_width = 5, shape_width = 5;
  for (const auto& row : rows) {
    name_width = std::max(name_width, row.entry->name.size());
    dtype_width = std::max(dtype_width, row.entry->dtype.size());
    shape_width = std::max(shape_width, inspect_shape(*row.entry).size());
  }
  std::string out = fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>9}", "name", name_width, "dtype", dtype_width, "shape",
                                shape_width, "bytes");
  if (with_stats) out += fmt::format("  {:>10}  {:>10}  {:>10}  {:>10}  {:>5}", "mean", "std", "min", "max", "nan");
  out += '\n';
  int64_t numbers = 0;
  uint64_t bytes = 0;
  for (const auto& [entry, stats] : rows) {
    out +=
        fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>9}", inspect_text(entry->name), name_width, entry->dtype, dtype_width,
                    inspect_shape(*entry), shape_width, format_bytes(static_cast<double>(entry->bytes)));
    if (stats)
      out += fmt::format("  {:>10.4g}  {:>10.4g}  {:>10.4g}  {:>10.4g}  {:>5}", stats->mean, stats->std, stats->min,
                         stats->max, stats->nan);
    out += '\n';
    numbers += entry->numel();
    bytes += entry->bytes;
  }
  out +=
      fmt::format("\n{} {} with {} numbers in {}, {} {} of {}\n", rows.size(), rows.size() == 1 ? "tensor" : "tensors",
                  format_count(static_cast<double>(numbers)), format_bytes(static_cast<double>(bytes)),
                  file.files().size(), file.files().size() == 1 ? "file" : "files", file.format());
  std::vector<std::string> names;
  for (const auto& entry : file.entries()) names.push_back(entry.name);
  const auto naming = models::detect_naming(names);
  if (!naming.scheme.empty()) out += fmt::format("names: a {} of {}\n", naming.architecture, naming.scheme);
  if (!file.root().empty()) out += fmt::format("part: {} (--root \"\" for all of the file)\n", file.root());
  for (const auto& [name, value] : file.metadata())
    out += fmt::format("{}: {}\n", inspect_text(name), inspect_text(value.substr(0, 200)));
  std::fputs(out.c_str(), stdout);
}

void print_json(const WeightFile& file, const std::vector<InspectRow>& rows) {
  using Json = nlohmann::ordered_json;
  Json tensors = Json::array();
  for (const auto& [entry, stats] : rows) {
    Json item{{"name", entry->name}, {"dtype", entry->dtype}, {"shape", entry->shape}, {"bytes", entry->bytes}};
    if (stats)
      item["stats"] = {
          {"mean", stats->mean}, {"std", stats->std}, {"min", stats->min}, {"max", stats->max}, {"nan", stats->nan}};
    tensors.push_back(std::move(item));
  }
  Json files = Json::array();
  for (const auto& path : file.files()) files.push_back(path.string());
  const Json out{{"format", file.format()},
                 {"files", files},
                 {"root", file.root()},
                 {"metadata", file.metadata()},
                 {"tensors", tensors}};
  std::puts(out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace

int inspect(const std::vector<std::string>& words, const Args&) {
  if (wants_help(words)) {
    std::fputs(kInspectHelp, stdout);
    return 0;
  }
  const WeightFlags flags("levin inspect", words, {"--json", "--stats"}, {"--sort", "--filter", "--root"}, {"FILE"});
  const auto order = flags.get("--sort", "", {"name", "size"});
  const WeightFile file(flags.file(0), {.root = flags.get("--root", "auto")});
  std::vector<InspectRow> rows;
  for (const auto& entry : file.entries())
    if (passes(entry.name, flags.all("--filter"))) rows.push_back({&entry, {}});
  if (order == "name")
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.entry->name < b.entry->name; });
  if (order == "size")
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto& a, const auto& b) { return a.entry->bytes > b.entry->bytes; });
  if (flags.has("--stats")) {
    ProgressBar bar("reading", static_cast<int64_t>(rows.size()), {.unit = "tensors", .keep = false});
    for (auto& row : rows) {
      if (row.entry->type != c10::ScalarType::Undefined) row.stats = stats_of(file.read(row.entry->name));
      bar.advance();
    }
  }
  if (flags.has("--json"))
    print_json(file, rows);
  else
    print_table(file, rows, flags.has("--stats"));
  return 0;
}

}  // namespace levin::cli
