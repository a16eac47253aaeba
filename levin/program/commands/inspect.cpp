#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/checkpoint/reader.h"
#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/models/naming.h"
#include "levin/program/command.h"
#include "levin/program/commands/inspect_table.h"

namespace levin::cli {
namespace {

constexpr const char* kInspectHelp =
    "Shows what is in a weight file or a checkpoint: names, dtypes, shapes, bytes, metadata. Nothing in it is run.\n"
    "Usage: levin inspect FILE [FLAGS]\n\n"
    "  FILE            .safetensors, .pt, .pth, .bin, .ckpt, an index of several, or a folder with one of these; or a\n"
    "                  checkpoint: its tensors, whole or in parts, and which files and ranks hold them\n"
    "  --filter GLOB   only names such as \"encoder.*\"; may come again, and !GLOB leaves names out\n"
    "  --sort WORD     name or size (largest first); else the order of the file\n"
    "  --stats         read the tensors too: mean, standard deviation, smallest, largest, how many are NaN\n"
    "  --verify        of a checkpoint: read everything and compare all checksums first\n"
    "  --root NAME     the part to take: of a torch file (state_dict), of a checkpoint (model, optimizer); \"\" for "
    "all\n"
    "                  of it (auto)\n"
    "  --json          for programs\n";

void print_table(const WeightFile& file, const std::vector<InspectRow>& rows, bool with_stats) {
  auto out = table_text(rows, with_stats);
  out += fmt::format("\n{}, {} {} of {}\n", total_text(rows), file.files().size(),
                     file.files().size() == 1 ? "file" : "files", file.format());
  std::vector<std::string> names;
  for (const auto& entry : file.entries()) names.push_back(entry.name);
  const auto naming = models::detect_naming(names);
  if (!naming.scheme.empty()) out += fmt::format("names: a {} of {}\n", naming.architecture, naming.scheme);
  if (!file.root().empty()) out += fmt::format("part: {} (--root \"\" for all of the file)\n", file.root());
  if (!file.stripped().empty())
    out += fmt::format("names without \"{}\", which all of them have (--root \"\" for all of the file)\n",
                       file.stripped());
  for (const auto& [name, value] : file.metadata())
    out += fmt::format("{}: {}\n", printable(name), printable(value.substr(0, 200)));
  std::fputs(out.c_str(), stdout);
}

void print_json(const WeightFile& file, const std::vector<InspectRow>& rows) {
  using Json = nlohmann::ordered_json;
  Json tensors = Json::array();
  for (const auto& [entry, held, stats] : rows) {
    Json item{{"name", entry.name}, {"dtype", entry.dtype}, {"shape", entry.shape}, {"bytes", entry.bytes}};
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
  const WeightFlags flags("levin inspect", words, {"--json", "--stats", "--verify"}, {"--sort", "--filter", "--root"},
                          {"FILE"});
  flags.get("--sort", "", {"name", "size"});
  if (detail::looks_like_checkpoint(flags.file(0))) return inspect_checkpoint(flags);
  LEVIN_CHECK(!flags.has("--verify"), "[levin inspect] --verify is for checkpoints, which have checksums; \"",
              flags.file(0), "\" is none");
  const auto patterns = flags.all("--filter");
  const bool strips = std::none_of(patterns.begin(), patterns.end(), [](const std::string& pattern) {
    return pattern.starts_with("module.") || pattern.starts_with("!module.");
  });
  const WeightFile file(flags.file(0), {.root = flags.get("--root", "auto"), .strip_module = strips});
  std::vector<InspectRow> rows;
  for (const auto& entry : file.entries()) rows.push_back({entry});
  rows = choose_rows(std::move(rows), flags);
  if (flags.has("--stats")) add_stats(rows, [&](const std::string& name) { return file.read(name); });
  if (flags.has("--json"))
    print_json(file, rows);
  else
    print_table(file, rows, flags.has("--stats"));
  return 0;
}

}  // namespace levin::cli
