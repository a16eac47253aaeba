#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/checkpoint/reader.h"
#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/weight_formats.h"
#include "levin/models/naming.h"
#include "levin/program/command.h"
#include "levin/program/commands/inspect/inspect_model.h"
#include "levin/program/commands/inspect/inspect_table.h"
#include "levin/program/commands/name_patterns.h"

namespace levin::cli {
namespace {

void print_table(const WeightFile& file, const std::vector<InspectRow>& rows, bool with_stats,
                 const std::optional<ModelFacts>& model) {
  auto out = table_text(rows, with_stats);
  out += fmt::format("\n{}, {} of {}\n", total_text(rows), counted(static_cast<int64_t>(file.files().size()), "file"),
                     file.format());
  std::vector<std::string> names;
  for (const auto& entry : file.entries()) names.push_back(entry.name);
  const auto naming = models::detect_naming(names);
  if (!naming.scheme.empty() && !model) out += fmt::format("naming: {} of {}\n", naming.architecture, naming.scheme);
  if (!file.root().empty()) out += fmt::format("root: {} (--root \"\" for the whole file)\n", file.root());
  if (!file.stripped().empty())
    out +=
        fmt::format("names without \"{}\", which all of them have (--root \"\" for the whole file)\n", file.stripped());
  for (const auto& [name, value] : file.metadata())
    out += fmt::format("{}: {}\n", printable(name), printable(value.substr(0, 200)));
  if (model) out += model->to_string();
  std::fputs(out.c_str(), stdout);
}

void print_json(const WeightFile& file, const std::vector<InspectRow>& rows, const std::optional<ModelFacts>& model) {
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
  Json out{{"format", file.format()},
           {"files", files},
           {"root", file.root()},
           {"metadata", file.metadata()},
           {"tensors", tensors}};
  if (model) {
    out["model"] = {{"model_type", model->model_type},   {"dtype", model->dtype},
                    {"parameters", model->parameters},   {"num_layers", model->layers},
                    {"hidden_dim", model->hidden},       {"num_heads", model->heads},
                    {"kv_heads", model->kv_heads},       {"vocab_size", model->vocab},
                    {"max_positions", model->positions}, {"weight_bytes", model->weights}};
    if (model->experts > 0)
      out["model"]["experts"] = {{"count", model->experts},
                                 {"per_token", model->experts_per_token},
                                 {"active_parameters", model->active_parameters}};
    if (!model->quantization.empty()) out["model"]["quantization"] = model->quantization;
    if (model->cache_per_token > 0) out["model"]["cache_bytes_per_token"] = model->cache_per_token;
    if (model->training)
      out["model"]["training"] = {{"tokens", model->training_tokens}, {"peak_bytes", *model->training}};
  }
  std::puts(out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

struct Inspect : InspectFlags {
  void describe(Flags& flags) {
    flags.argument(
        "FILE", file,
        "a weight file (" + join(levin::detail::weight_endings()) +
            "), an index of several, a folder with one of these (a model with its config.json too), or a checkpoint");
    flags.repeated("filter", filter, "only names that match, such as \"encoder.*\"; repeatable; !GLOB excludes",
                   "GLOB");
    flags.flag("sort", sort, "order; size is largest first [the order of the file]", "ORDER", {"name", "size"});
    flags.flag("stats", stats, "read the tensors too: mean, std, min, max and number of NaN");
    flags.flag("verify", verify, "of a checkpoint: read everything and compare all checksums");
    flags.flag("root", root,
               "key to show: of a torch file (state_dict), of a checkpoint (model, optimizer); \"\" shows everything",
               "KEY");
    flags.flag(
        "quantize", quantize,
        "of a model: the memory with linear layers in few bits: int8, int8-weights, int4, nf4, nf4-double or fp8",
        "NAME");
    flags.flag("json", json, "print JSON");
    flags.set_epilog("No code in a file is ever executed.\n");
  }

  int run() {
    if (levin::detail::looks_like_checkpoint(file)) return inspect_checkpoint(*this);
    LEVIN_CHECK(!verify, "[levin inspect] --verify is for checkpoints, which have checksums; \"", file,
                "\" is a weight file");
    const WeightFile weights(file, {.root = root, .strip_module = !name_module_prefix(filter)});
    std::vector<InspectRow> rows;
    for (const auto& entry : weights.entries()) rows.push_back({entry});
    rows = choose_rows(std::move(rows), *this);
    if (stats) add_stats(rows, [&](const std::string& name) { return weights.read(name); });
    const auto model = model_facts(file, quantize);
    if (json)
      print_json(weights, rows, model);
    else
      print_table(weights, rows, stats, model);
    return 0;
  }
};

}  // namespace

Command inspect_command() {
  return make_command<Inspect>("inspect", "list the tensors of a weight file or checkpoint");
}

}  // namespace levin::cli
