#include <cmath>

#include "levin/models/language/architecture.h"

namespace levin::models {
namespace {

/// Gemma 2 has its activation under another name. "gelu" of the first releases of Gemma means the approximation.
DecoderOptions gemma_options(const ModelConfig& config, const char* activation = "hidden_activation") {
  auto options = llama_options(config, 256);
  config.refuse_unless("use_bidirectional_attention", false, "Levin's Gemma is causal");
  const bool is_first = std::string_view(activation) == "hidden_act";
  const auto name = activation_option(config, {activation}, "gelu_pytorch_tanh");
  options.activation = (is_first && name == "gelu" ? "gelu_tanh" : name) + "_gated";
  options.norm_unit_offset = true;
  options.embedding_scale = std::sqrt(static_cast<double>(options.hidden_dim));
  options.qkv_bias = options.out_bias = config.flag("attention_bias", false);
  return options;
}

}  // namespace

LanguageArchitecture gemma_architecture() {
  return {.model_type = "gemma",
          .class_name = "Gemma",
          .prefix = "model.",
          .rules = llama_weights(),
          .decoder = [](const ModelConfig& config) { return gemma_options(config, "hidden_act"); }};
}

LanguageArchitecture gemma2_architecture() {
  auto rules = llama_weights();
  const std::string theirs = "layers.#.", ours = "blocks.#.";
  for (auto& rule : rules)
    if (rule.ours == ours + "norm_2.weight") rule.theirs = {theirs + "pre_feedforward_layernorm.weight"};
  rules.push_back({ours + "norm_1_after.weight", {theirs + "post_attention_layernorm.weight"}});
  rules.push_back({ours + "norm_2_after.weight", {theirs + "post_feedforward_layernorm.weight"}});
  return {.model_type = "gemma2",
          .class_name = "Gemma2",
          .prefix = "model.",
          .rules = rules,
          .decoder = [](const ModelConfig& config) {
            auto options = gemma_options(config);
            options.block = "sandwich";
            options.attention_scale = 1 / std::sqrt(config.number({"query_pre_attn_scalar"}, 256, 1e-6, 1e9));
            const auto cap = [&](const char* key, double usual) {
              return config.is_null(key) ? 0.0 : config.number({key}, usual, 1e-6, 1e9);
            };
            options.attention_softcap = cap("attn_logit_softcapping", 50);
            options.logit_softcap = cap("final_logit_softcapping", 30);
            if (config.is_null("sliding_window")) return options;
            options.window = config.count({"sliding_window"}, kMostPositions, 4096);
            options.windowed_layers = windowed_layers(config, options.num_layers);
            if (options.windowed_layers.empty())
              for (int64_t i = 0; i < options.num_layers; ++i) options.windowed_layers.push_back(i % 2 == 0);
            return options;
          }};
}

}  // namespace levin::models
