// What `levin inspect` says of a checkpoint: its tensors, who holds them, and what else is in it.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <set>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/checkpoint/reader.h"
#include "levin/core/words.h"
#include "levin/program/commands/convert/convert_source.h"
#include "levin/program/commands/inspect/inspect_table.h"
#include "levin/program/flags.h"

namespace levin::cli {
namespace {

using levin::detail::CheckpointReader;
using levin::detail::TensorEntry;

constexpr std::string_view kRank = ".rank-";

/// "model.rank-3.safetensors" without its rank and ending, and the rank; -1 for a file that is no one rank's.
std::pair<std::string_view, int> stem_and_rank(std::string_view file) {
  if (file.ends_with(".safetensors")) file.remove_suffix(12);
  const auto at = file.rfind(kRank);
  if (at == std::string_view::npos) return {file, -1};
  const auto digits = file.substr(at + kRank.size());
  int rank = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (error != std::errc() || end != digits.data() + digits.size() || rank < 0) return {file, -1};
  return {file.substr(0, at), rank};
}

/// {0, 1, 2, 5} as "0-2,5".
std::string ranges_text(const std::set<int>& numbers) {
  std::string text;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const int first = *it;
    int last = first;
    while (++it != numbers.end() && *it == last + 1) last = *it;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (last > first) text += fmt::format("-{}", last);
  }
  return text;
}

/// "model.rank-{0-3}", "model.whole".
std::string holders_text(const TensorEntry& tensor) {
  std::map<std::string_view, std::set<int>> ranks;
  for (const auto& part : tensor.parts) {
    const auto [stem, rank] = stem_and_rank(part.file);
    ranks[stem].insert(rank);
  }
  std::string text;
  for (const auto& [stem, numbers] : ranks) {
    text += fmt::format("{}{}", text.empty() ? "" : " ", stem);
    const bool several = numbers.size() > 1;
    if (!numbers.contains(-1))
      text += fmt::format("{}{}{}{}", kRank, several ? "{" : "", ranges_text(numbers), several ? "}" : "");
  }
  return text.empty() ? "nothing, it has no elements" : text;
}

/// Tensors, other values and slots of optimizers somewhere in a value.
struct Contents {
  size_t tensors = 0;
  size_t values = 0;
  double numbers = 0;
  double bytes = 0;
  size_t stepped_params = 0;
  std::vector<std::string> slots = {};

  void add(const StateValue& value, std::set<const c10::TensorImpl*>& seen) {
    if (value.is_tensor()) {
      const auto& tensor = value.to_tensor();
      if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) return;
      ++tensors;
      numbers += static_cast<double>(tensor.numel());
      bytes += static_cast<double>(tensor.nbytes());
    } else if (value.is_list()) {
      for (const auto& element : value.to_list()) add(element, seen);
    } else if (value.is_dict()) {
      const auto& dict = value.to_dict();
      if (const auto* state = dict.find("state"); state && state->is_dict() && dict.contains("param_groups"))
        add_slots(state->to_dict());
      for (const auto& item : dict) add(item.second, seen);
    } else {
      ++values;
    }
  }

  void add_slots(const StateDict& state) {
    stepped_params += state.size();
    for (const auto& [param, kept] : state)
      if (kept.is_dict())
        for (const auto& item : kept.to_dict())
          if (std::find(slots.begin(), slots.end(), item.first) == slots.end()) slots.push_back(item.first);
  }
};

std::string value_text(const StateValue& value) {
  return std::visit(
      []<class T>(const T& v) -> std::string {
        if constexpr (std::same_as<T, std::string>)
          return printable(std::string_view(v).substr(0, 200));
        else if constexpr (std::same_as<T, bool> || std::same_as<T, int64_t> || std::same_as<T, double>)
          return fmt::format("{}", v);
        else
          return "none";
      },
      value.variant());
}

/// What stands under one name of the state, in a line.
std::string key_text(const StateValue& value) {
  if (!value.is_tensor() && !value.is_dict() && !value.is_list()) return value_text(value);
  Contents contents;
  std::set<const c10::TensorImpl*> seen;
  contents.add(value, seen);
  std::string text;
  if (contents.tensors > 0)
    text = fmt::format("{} with {} elements in {}", counted(static_cast<int64_t>(contents.tensors), "tensor"),
                       format_count(contents.numbers), format_bytes(contents.bytes));
  if (contents.stepped_params > 0)
    text += fmt::format(": {} of {}", printable(join(contents.slots)),
                        counted(static_cast<int64_t>(contents.stepped_params), "parameter"));
  else if (contents.tensors == 0 || contents.values > 0)
    text += (text.empty() ? "" : ", ") + counted(static_cast<int64_t>(contents.values), "value");
  return text;
}

/// The same for programs: plain values as they are.
nlohmann::ordered_json key_json(const StateValue& value) {
  return std::visit(
      [&]<class T>(const T& v) -> nlohmann::ordered_json {
        if constexpr (std::same_as<T, std::monostate>)
          return nullptr;
        else if constexpr (std::same_as<T, Tensor> || std::same_as<T, StateList> || std::same_as<T, StateDict>)
          return key_text(value);
        else
          return v;
      },
      value.variant());
}

std::string saved_text(const levin::detail::Manifest& manifest) {
  const auto seconds = std::isfinite(manifest.saved_at) ? std::clamp(manifest.saved_at, 0.0, 2.5e11) : 0.0;
  return fmt::format("saved by {} {} at {:%Y-%m-%d %H:%M:%S} UTC (Levin {}, torch {})", manifest.world_size,
                     manifest.world_size == 1 ? "process" : "ranks", fmt::gmtime(static_cast<std::time_t>(seconds)),
                     printable(manifest.levin), printable(manifest.torch));
}

void print_checkpoint(const CheckpointReader& reader, const std::vector<InspectRow>& rows,
                      const std::vector<std::string>& keys, const InspectFlags& flags) {
  auto out = table_text(rows, flags.stats);
  const auto& manifest = reader.manifest();
  std::map<std::string_view, size_t> counts;
  for (const auto& tensor : manifest.tensors)
    for (const auto& part : tensor.parts) ++counts[part.file];
  size_t width = 4;
  auto files = manifest.files;
  std::stable_sort(files.begin(), files.end(),
                   [](const auto& a, const auto& b) { return stem_and_rank(a.name) < stem_and_rank(b.name); });
  for (const auto& file : files) width = std::max(width, file.name.size());
  out += fmt::format("\n{:<{}}  {:>9}  tensors\n", "file", width, "bytes");
  for (const auto& file : files)
    out += fmt::format("{:<{}}  {:>9}  {}\n", printable(file.name), width,
                       format_bytes(static_cast<double>(file.bytes)), counts[file.name]);
  out += fmt::format("\n{}, {} files of a {} checkpoint\n{}\n", total_text(rows), manifest.files.size(),
                     reader.sharded() ? "sharded" : "full", saved_text(manifest));
  std::map<std::string, Tensor> described;
  for (const auto& key : keys)
    out += fmt::format("{}: {}\n", printable(key), key_text(reader.describe(key, described)));
  out += flags.verify ? "all checksums are right\n"
                      : "sizes and headers are right; checksums of the data were not compared (--verify)\n";
  std::fputs(out.c_str(), stdout);
}

void print_checkpoint_json(const CheckpointReader& reader, const std::vector<InspectRow>& rows,
                           const std::map<std::string, std::string>& ids, const std::vector<std::string>& keys) {
  using Json = nlohmann::ordered_json;
  const auto& manifest = reader.manifest();
  Json files = Json::array();
  for (const auto& file : manifest.files) {
    Json item{{"name", file.name}, {"bytes", file.bytes}};
    if (const int rank = stem_and_rank(file.name).second; rank >= 0) item["rank"] = rank;
    files.push_back(std::move(item));
  }
  Json tensors = Json::array();
  for (const auto& [entry, held, stats] : rows) {
    Json item{{"name", entry.name}, {"dtype", entry.dtype}, {"shape", entry.shape}, {"bytes", entry.bytes}};
    for (const auto& part : reader.entry(ids.at(entry.name)).parts)
      item["parts"].push_back({{"file", part.file}, {"start", part.start}, {"shape", part.shape}});
    if (stats)
      item["stats"] = {
          {"mean", stats->mean}, {"std", stats->std}, {"min", stats->min}, {"max", stats->max}, {"nan", stats->nan}};
    tensors.push_back(std::move(item));
  }
  Json state = Json::object();
  std::map<std::string, Tensor> described;
  for (const auto& key : keys) state[key] = key_json(reader.describe(key, described));
  const Json out{{"format", "checkpoint"},
                 {"sharded", reader.sharded()},
                 {"world_size", manifest.world_size},
                 {"saved_at", manifest.saved_at},
                 {"levin", manifest.levin},
                 {"torch", manifest.torch},
                 {"state", state},
                 {"files", files},
                 {"tensors", tensors}};
  std::puts(out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace

int inspect_checkpoint(const InspectFlags& flags) {
  const CheckpointReader reader(flags.file);
  const bool all = flags.root == "auto" || flags.root.empty();
  const auto keys = all ? reader.keys() : std::vector{reader.choose_key("levin inspect", flags.root, "--root NAME")};
  std::map<std::string, std::string> ids;  // by the name that is shown
  std::vector<InspectRow> rows;
  const auto add = [&](const std::string& name, const std::string& id) {
    ids.emplace(name, id);
    rows.push_back({checkpoint_entry(reader, name, id), holders_text(reader.entry(id)), {}});
  };
  if (all)
    for (const auto& [name, id] : reader.list_all()) add(name, id);
  else
    for (const auto& [name, id] : reader.list(keys[0])) add(name, id);
  rows = choose_rows(std::move(rows), flags);
  if (flags.verify) verify_with_progress(reader);
  if (flags.stats) add_stats(rows, [&](const std::string& name) { return reader.read_tensor(ids.at(name)); });
  if (flags.json)
    print_checkpoint_json(reader, rows, ids, keys);
  else
    print_checkpoint(reader, rows, keys, flags);
  return 0;
}

}  // namespace levin::cli
