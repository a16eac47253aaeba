#include "levin/models/language/architecture.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::models {
namespace {

void read_scaling(const ModelConfig& config, const ModelConfig& rope, const std::string& type,
                  DecoderOptions& options) {
  auto& scaling = options.rotary_scaling;
  scaling.type = type;
  const auto original = rope.integer("original_max_position_embeddings", 1, kMostPositions, options.max_positions);
  scaling.original_positions = config.integer("original_max_position_embeddings", 1, kMostPositions, original);
  if (type == "dynamic") scaling.original_positions = options.max_positions;
  if (!rope.has("factor")) {
    if (type != "yarn") rope.fail("factor", "is missing");
    scaling.factor = static_cast<double>(options.max_positions) / static_cast<double>(scaling.original_positions);
  } else {
    scaling.factor = rope.number({"factor"}, 1, 1, 1e9);
  }
  if (type == "llama3") {
    if (!rope.has("low_freq_factor") || !rope.has("high_freq_factor"))
      rope.fail("low_freq_factor", "and high_freq_factor are needed for rope_type llama3");
    scaling.low_freq_factor = rope.number({"low_freq_factor"}, 1, 1e-6, 1e9);
    scaling.high_freq_factor = rope.number({"high_freq_factor"}, 4, 1e-6, 1e9);
  }
  if (type != "yarn") return;
  // As transformers: 0 counts as absent.
  const auto positive = [&](const char* key, double usual) {
    const auto value = rope.number({key}, usual, 0, 1e9);
    return value > 0 ? value : usual;
  };
  scaling.beta_fast = positive("beta_fast", 32);
  scaling.beta_slow = positive("beta_slow", 1);
  scaling.truncate = rope.flag("truncate", true);
  scaling.mscale = rope.number({"mscale"}, 0, 0, 1e9);
  scaling.mscale_all_dim = rope.number({"mscale_all_dim"}, 0, 0, 1e9);
  if (rope.has("attention_factor")) scaling.attention_factor = rope.number({"attention_factor"}, 1, 0, 1e9);
}

}  // namespace

std::string full_name(const LanguageArchitecture& architecture, std::string_view ours, const std::string& theirs) {
  for (const char* beginning : {"head.", "classifier.", "classifier_dense.", "token_classifier.", "score."})
    if (ours.starts_with(beginning)) return theirs;
  return std::string(architecture.prefix) + theirs;
}

const std::vector<LanguageArchitecture>& architectures_of_text() {
  static const auto table = [] {
    std::vector<LanguageArchitecture> all{
        gpt2_architecture(),      llama_architecture(),    mistral_architecture(), qwen2_architecture(),
        qwen3_architecture(),     gemma_architecture(),    gemma2_architecture(),  bloom_architecture(),
        opt_architecture(),       gpt_neox_architecture(), bert_architecture(),    distilbert_architecture(),
        roberta_architecture(),   big_bird_architecture(), mixtral_architecture(), qwen2_moe_architecture(),
        qwen3_moe_architecture(), olmoe_architecture(),
    };
    // transformers calls the classifier of every decoder so.
    for (auto& each : all)
      if (each.decoder) each.rules.push_back({"score.weight", {"score.weight"}});
    return all;
  }();
  return table;
}

const LanguageArchitecture& architecture_of(const ModelConfig& config) {
  const auto type = config.text("model_type", "");
  if (type.empty()) config.fail("model_type", "is missing");
  std::vector<std::string> known;
  for (const auto& each : architectures_of_text()) {
    if (each.model_type == type) return each;
    known.emplace_back(each.model_type);
  }
  fail_unknown("open_model", "model_type", shown(type), known);
}

std::string activation_option(const ModelConfig& config, std::initializer_list<const char*> keys, const char* usual) {
  static const std::vector<std::pair<std::string, std::string>> names{
      {"gelu", "gelu"},
      {"gelu_new", "gelu_tanh"},
      {"gelu_fast", "gelu_tanh"},
      {"gelu_python", "gelu"},
      {"gelu_pytorch_tanh", "gelu_tanh"},
      {"quick_gelu", "quick_gelu"},
      {"relu", "relu"},
      {"silu", "silu"},
      {"swish", "silu"},
      {"tanh", "tanh"},
  };
  std::string found, from;
  for (const char* key : keys) {
    const auto word = config.text(key, "");
    if (word.empty()) continue;
    if (!found.empty() && word != found)
      config.fail(key, fmt::format("\"{}\" and {} \"{}\" do not agree", word, from, found));
    found = word, from = key;
  }
  if (found.empty()) found = usual;
  std::vector<std::string> known;
  for (const auto& [theirs, ours] : names) {
    if (theirs == found) return ours;
    known.push_back(theirs);
  }
  fail_unknown("open_model", from, shown(found), known);
}

void read_rotary(const ModelConfig& config, DecoderOptions& options, std::optional<double> partial) {
  options.positions = "rotary";
  // rope_scaling is what older files have; where both are there it is the one that counts.
  const bool older = config.is_object("rope_scaling") && config.size("rope_scaling") > 0;
  const auto rope = config.object(older ? "rope_scaling" : "rope_parameters");
  if (rope.is_object("full_attention") || rope.is_object("sliding_attention"))
    config.fail("rope_parameters", "of each kind of layer are not supported");
  // Each family has names of its own, and transformers reads no others.
  const auto of_config = config.number({partial ? "rotary_emb_base" : "rope_theta"}, 10000, 1e-6, 1e30);
  options.rotary_base = rope.number({"rope_theta"}, of_config, 1e-6, 1e30);
  const auto share_of_config =
      config.number({partial ? "rotary_pct" : "partial_rotary_factor"}, partial.value_or(1), 0, 1);
  const auto share = rope.number({"partial_rotary_factor"}, share_of_config, 0, 1);
  const auto width = options.head_width();
  options.rotary_dim = static_cast<int64_t>(static_cast<double>(width) * share);
  if (options.rotary_dim < 1) config.fail("partial_rotary_factor", "leaves no dimension of a head to rotate");
  if (options.rotary_dim == width || !partial) options.rotary_dim = 0;
  const auto type = rope.text("rope_type", rope.text("type", "default"));
  if (!partial && share < 1 && type != "default")
    config.fail("partial_rotary_factor", fmt::format("is not known to {} with rope_type \"{}\"",
                                                     shown(config.text("model_type", "")), shown(type)));
  if (type == "default") return;
  static const std::vector<std::string> known{"default", "linear", "dynamic", "yarn", "llama3"};
  if (std::find(known.begin(), known.end(), type) == known.end())
    fail_unknown("open_model", "rope_type", shown(type), known);
  read_scaling(config, rope, type, options);
}

int64_t labels_of(const ModelConfig& config) {
  const auto named = config.is_object("id2label") ? config.size("id2label") : 2;
  return config.integer("num_labels", 1, kMostTokens, std::max<int64_t>(1, named));
}

std::vector<bool> windowed_layers(const ModelConfig& config, int64_t layers) {
  std::vector<bool> windowed;
  const auto kinds = config.texts("layer_types");
  if (kinds.empty()) return windowed;
  if (static_cast<int64_t>(kinds.size()) != layers)
    config.fail("layer_types", fmt::format("names {} layers, there are {}", kinds.size(), layers));
  for (const auto& kind : kinds) {
    if (kind != "sliding_attention" && kind != "full_attention")
      config.fail("layer_types",
                  fmt::format("\"{}\" is not known (known: full_attention, sliding_attention)", shown(kind)));
    windowed.push_back(kind == "sliding_attention");
  }
  return windowed;
}

}  // namespace levin::models
