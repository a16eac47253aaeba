#include "levin/models/sentence_embedding.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/stack.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/models/language_score.h"
#include "levin/text/normalizers.h"

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

json read_object(const fs::path& file) {
  auto value = read_json(file);
  LEVIN_CHECK(value.is_object(), "[sentence_pooling] \"", file.string(), "\" is not a JSON object");
  return value;
}

std::string mode_of(const json& config, const fs::path& file) {
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

/// The prompt that stands before every text unless another one is asked for.
std::string default_prompt(const fs::path& file) {
  if (!fs::is_regular_file(file)) return {};
  const auto config = read_object(file);
  const auto name = config.value("default_prompt_name", json());
  if (name.is_null()) return {};
  const auto prompts = config.value("prompts", json());
  LEVIN_CHECK(name.is_string() && prompts.is_object() && prompts.value(name.get<std::string>(), json()).is_string(),
              "[sentence_pooling] \"", file.string(), "\": default_prompt_name ", shown(name.dump()),
              " is none of its \"prompts\"");
  return prompts[name.get<std::string>()].get<std::string>();
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
  bool pools_prompt = true;
  for (const auto& [kind, path] : modules_in(folder)) {
    if (kind == "Transformer") continue;
    LEVIN_CHECK((kind == "Pooling" && pooling.mode.empty()) || kind == "Normalize", "[sentence_pooling] \"",
                (folder / "modules.json").string(), "\": a module ", shown(kind), " is not supported here");
    if (kind == "Normalize") {
      pooling.normalize = true;
      continue;
    }
    const auto file = folder / path / "config.json";
    const auto config = read_object(file);
    pooling.mode = mode_of(config, file);
    pools_prompt = config.value("include_prompt", json(true)) != false;
  }
  LEVIN_CHECK(!pooling.mode.empty(), "[sentence_pooling] \"", (folder / "modules.json").string(), "\" has no Pooling");
  const auto limits = folder / "sentence_bert_config.json";
  if (fs::is_regular_file(limits)) {
    const auto config = read_object(limits);
    const auto most = config.value("max_seq_length", json());
    if (most.is_number_unsigned() && most.get<uint64_t>() <= INT32_MAX) pooling.max_tokens = most.get<int64_t>();
    pooling.lower_case = config.value("do_lower_case", json()) == true;
  }
  pooling.prompt = default_prompt(folder / "config_sentence_transformers.json");
  LEVIN_CHECK(pools_prompt || pooling.prompt.empty(), "[sentence_pooling] \"", folder.string(),
              "\": include_prompt false is not supported: the prompt of default_prompt_name would count");
  return pooling;
}

std::string sentence_text(const std::string& text, const SentencePooling& pooling) {
  auto whole = pooling.prompt + text;
  if (!text::valid_utf8(whole)) return whole;  // the tokenizer refuses it
  text::Aligned changed(whole);
  text::make_strip(/*left=*/true, /*right=*/true)->apply(changed);
  if (pooling.lower_case) text::make_lowercase()->apply(changed);
  return std::string(changed.text());
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
