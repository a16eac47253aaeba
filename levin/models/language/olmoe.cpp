#include "levin/models/language/architecture.h"

namespace levin::models {

LanguageArchitecture olmoe_architecture() {
  return {.model_type = "olmoe",
          .class_name = "Olmoe",
          .prefix = "model.",
          .rules = with_experts(llama_weights(), "mlp", "gate_proj", "up_proj", "down_proj"),
          .ignored = {"layers.#.self_attn.rotary_emb.inv_freq"},
          .tied = false,
          .decoder = [](const ModelConfig& config) {
            auto options = llama_options(config);
            if (!config.has("rms_norm_eps")) options.norm_eps = 1e-5;
            options.qkv_bias = options.out_bias = config.flag("attention_bias", false);
            options.qk_norm = options.qk_norm_wide = true;
            if (config.has("clip_qkv")) config.fail("clip_qkv", "is not supported");
            read_experts(config, options, 64, 8, 0.01);
            options.experts.normalized = config.flag("norm_topk_prob", false);
            return options;
          }};
}

}  // namespace levin::models
