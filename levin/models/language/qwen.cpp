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

}  // namespace levin::models
