#include "levin/models/sentence_embedding.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/stack.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/models/language_score.h"

namespace levin::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kLongestModuleFile = 1 << 20;

constexpr std::pair<const char*, const char*> kPoolingWords[] = {{"pooling_mode_mean_tokens", "mean"},
                                                                 {"pooling_mode_cls_token", "first"},
                                                                 {"pooling_mode_max_tokens", "max"},
                                                                 {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt"},
                                                                 {"pooling_mode_lasttoken", "last"}};

json read_json(const fs::path& path) {
  auto value = json::parse(read_file(path, kLongestModuleFile), nullptr, false);
  LEVIN_CHECK(!value.is_discarded(), "[sentence_pooling] \"", path.string(), "\" is not JSON");
  return value;
}

/// A module of modules.json: the last word of its class, and its folder.
struct Module {
  std::string kind, path;
};

std::vector<Module> modules_in(const fs::path& folder) {
  const auto file = folder / "modules.json";
  const auto list = read_json(file);
  LEVIN_CHECK(list.is_array(), "[sentence_pooling] \"", file.string(), "\" is not a list of modules");
  std::vector<Module> modules;
  for (const auto& item : list) {
    LEVIN_CHECK(item.is_object() && item.value("type", json()).is_string() && item.value("path", json()).is_string(),
                "[sentence_pooling] \"", file.string(), "\" has a module without \"type\" and \"path\"");
    const auto type = item["type"].get<std::string>();
    modules.push_back({type.substr(type.rfind('.') + 1), item["path"].get<std::string>()});
    const auto& path = modules.back().path;
    LEVIN_CHECK(path != "." && path != ".." && path.find_first_of(std::string_view("/\\\0", 3)) == path.npos,
                "[sentence_pooling] \"", file.string(), "\" names \"", shown(path),
                "\"; only folders beside it are allowed");
  }
  return modules;
}

std::string mode_of(const fs::path& file) {
  const auto config = read_json(file);
  LEVIN_CHECK(config.is_object(), "[sentence_pooling] \"", file.string(), "\" is not a JSON object");
  std::string found;
  for (const auto& [key, value] : config.items()) {
    if (!key.starts_with("pooling_mode_") || value != true) continue;
    const auto* word =
        std::find_if(std::begin(kPoolingWords), std::end(kPoolingWords), [&](const auto& w) { return w.first == key; });
    LEVIN_CHECK(word != std::end(kPoolingWords) && found.empty(), "[sentence_pooling] \"", file.string(), "\": \"",
                shown(key), "\" is not supported", found.empty() ? "" : " beside another one");
    found = word->second;
  }
  LEVIN_CHECK(!found.empty(), "[sentence_pooling] \"", file.string(), "\" says no pooling_mode");
  return found;
}

Tensor pooled_row(const Tensor& hidden, const SentencePooling& pooling) {
  Tensor vector;
  const auto tokens = hidden.size(0);
  if (pooling.mode == "mean")
    vector = hidden.mean(0);
  else if (pooling.mode == "mean_sqrt")
    vector = hidden.sum(0) / std::sqrt(static_cast<double>(tokens));
  else if (pooling.mode == "max")
    vector = hidden.amax(0);
  else
    vector = hidden[pooling.mode == "first" ? 0 : tokens - 1];
  // As torch's normalize: no division by zero.
  return pooling.normalize ? vector / vector.norm().clamp_min(1e-12) : vector;
}

}  // namespace

std::optional<SentencePooling> sentence_pooling(const fs::path& folder) {
  if (!fs::is_regular_file(folder / "modules.json")) return {};
  SentencePooling pooling{.mode = {}, .normalize = false};
  for (const auto& [kind, path] : modules_in(folder)) {
    if (kind == "Transformer") continue;
    LEVIN_CHECK((kind == "Pooling" && pooling.mode.empty()) || kind == "Normalize", "[sentence_pooling] \"",
                (folder / "modules.json").string(), "\": a module ", shown(kind), " is not supported here");
    if (kind == "Normalize")
      pooling.normalize = true;
    else
      pooling.mode = mode_of(folder / path / "config.json");
  }
  LEVIN_CHECK(!pooling.mode.empty(), "[sentence_pooling] \"", (folder / "modules.json").string(), "\" has no Pooling");
  const auto limits = folder / "sentence_bert_config.json";
  if (fs::is_regular_file(limits)) {
    const auto config = read_json(limits);
    const auto most = config.is_object() ? config.value("max_seq_length", json()) : json();
    if (most.is_number_unsigned() && most.get<uint64_t>() <= INT32_MAX) pooling.max_tokens = most.get<int64_t>();
  }
  return pooling;
}

std::vector<fs::path> sentence_files(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::is_regular_file(folder / "modules.json")) return files;
  for (const char* name : {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"})
    if (fs::is_regular_file(folder / name)) files.emplace_back(name);
  for (const auto& [kind, path] : modules_in(folder))
    if (!path.empty() && fs::is_regular_file(folder / path / "config.json"))
      files.push_back(fs::path(path) / "config.json");
  return files;
}

Tensor embed_rows(const LanguageModel& model, std::span<const std::vector<int64_t>> rows,
                  const SentencePooling& pooling, int64_t batch) {
  LEVIN_CHECK(model.encoder, "[embed_rows] ", model.model_type, " is a decoder; embeddings are of encoders");
  std::vector<std::string> modes;
  for (const auto& [key, word] : kPoolingWords) modes.emplace_back(word);
  if (std::find(modes.begin(), modes.end(), pooling.mode) == modes.end())
    fail_unknown("embed_rows", "pooling", pooling.mode, modes);
  LEVIN_CHECK(!rows.empty(), "[embed_rows] no rows");
  for (size_t i = 0; i < rows.size(); ++i)
    LEVIN_CHECK(pooling.max_tokens == 0 || static_cast<int64_t>(rows[i].size()) <= pooling.max_tokens,
                "[embed_rows] row ", i, " has ", rows[i].size(), " tokens; the folder allows ", pooling.max_tokens,
                " (max_seq_length)");
  std::vector<Tensor> vectors;
  for (const auto& score : score_rows(model, rows, {.batch = batch, .keep_outputs = true}))
    vectors.push_back(pooled_row(score.output, pooling));
  return at::stack(vectors);
}

}  // namespace levin::models
