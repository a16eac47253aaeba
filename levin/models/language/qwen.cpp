#include <algorithm>

#include "levin/models/language/architecture.h"

namespace levin::models {
namespace {

void read_qwen_window(const ModelConfig& config, DecoderOptions& options) {
  if (!config.flag("use_sliding_window", false)) {
    for (const auto windowed : windowed_layers(config, options.num_layers))
      if (windowed) config.fail("layer_types", "has sliding_attention, but use_sliding_window is false");
    return;
  }
  if (config.is_null("sliding_window")) return;
  options.window = config.count({"sliding_window"}, kMostPositions, 4096);
  options.windowed_layers = windowed_layers(config, options.num_layers);
  if (!options.windowed_layers.empty()) return;
  const auto first = config.integer("max_window_layers", 0, kMostLayers, 28);
  for (int64_t i = 0; i < options.num_layers; ++i) options.windowed_layers.push_back(i >= first);
}

/// Experts, and the layers that have none.
void read_qwen_experts(const ModelConfig& config, DecoderOptions& options, int64_t count, int64_t per_token,
                       int64_t width) {
  read_experts(config, options, count, per_token);
  auto& experts = options.experts;
  experts.width = config.count({"moe_intermediate_size"}, kMostWidth, width);
  experts.normalized = config.flag("norm_topk_prob", false);
  const auto step = config.count({"decoder_sparse_step"}, kMostLayers, 1);
  const auto dense = config.integers("mlp_only_layers", 0, kMostLayers);
  if (step == 1 && dense.empty()) return;
  for (int64_t i = 0; i < options.num_layers; ++i)
    options.expert_layers.push_back((i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end());
}

std::vector<WeightRule> qwen_moe_weights() {
  return with_experts(llama_weights(), "mlp", "gate_proj", "up_proj", "down_proj");
}

}  // namespace

LanguageArchitecture qwen2_architecture() {
  return {.model_type = "qwen2",
          .class_name = "Qwen2",
          .prefix = "model.",
          .rules = llama_weights(),
          .ignored = {"layers.#.self_attn.rotary_emb.inv_freq"},
          .tied = false,
          .decoder = [](const ModelConfig& config) {
            auto options = llama_options(config);
            options.qkv_bias = true;
            read_qwen_window(config, options);
            return options;
          }};
}

LanguageArchitecture qwen3_architecture() {
  return {.model_type = "qwen3",
          .class_name = "Qwen3",
          .prefix = "model.",
          .rules = llama_weights(),
          .tied = false,
          .decoder = [](const ModelConfig& config) {
            auto options = llama_options(config, 128);
            options.qkv_bias = options.out_bias = config.flag("attention_bias", false);
            options.qk_norm = true;
            read_qwen_window(config, options);
            return options;
          }};
}

LanguageArchitecture qwen2_moe_architecture() {
  auto rules = qwen_moe_weights();
  const std::string ours = "blocks.#.", theirs = "layers.#.mlp.";
  rules.push_back({ours + "shared.gate.weight", {theirs + "shared_expert.gate_proj.weight"}});
  rules.push_back({ours + "shared.up.weight", {theirs + "shared_expert.up_proj.weight"}});
  rules.push_back({ours + "shared.down.weight", {theirs + "shared_expert.down_proj.weight"}});
  rules.push_back({ours + "shared_gate.weight", {theirs + "shared_expert_gate.weight"}});
  return {.model_type = "qwen2_moe",
          .class_name = "Qwen2Moe",
          .prefix = "model.",
          .rules = std::move(rules),
          .ignored = {"layers.#.self_attn.rotary_emb.inv_freq"},
          .tied = false,
          .decoder = [](const ModelConfig& config) {
            auto options = llama_options(config);
            options.qkv_bias = config.flag("qkv_bias", true);
            if (config.flag("use_sliding_window", false))
              config.fail("use_sliding_window", "of qwen2_moe is not supported");
            read_qwen_experts(config, options, 60, 4, 1408);
            options.shared_expert_dim = config.count({"shared_expert_intermediate_size"}, kMostWidth, 5632);
            return options;
          }};
}

LanguageArchitecture qwen3_moe_architecture() {
  return {.model_type = "qwen3_moe",
          .class_name = "Qwen3Moe",
          .prefix = "model.",
          .rules = qwen_moe_weights(),
          .tied = false,
          .decoder = [](const ModelConfig& config) {
            auto options = llama_options(config);
            options.qkv_bias = options.out_bias = config.flag("attention_bias", false);
            options.qk_norm = true;
            read_qwen_window(config, options);
            options.windowed_layers.clear();  // all layers have the window where there is one
            read_qwen_experts(config, options, 128, 8, 768);
            return options;
          }};
}

}  // namespace levin::models
