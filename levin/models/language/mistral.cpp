#include "levin/models/language/architecture.h"

namespace levin::models {

LanguageArchitecture mistral_architecture() {
  return {.model_type = "mistral",
          .class_name = "Mistral",
          .prefix = "model.",
          .rules = llama_weights(),
          .ignored = {"layers.#.self_attn.rotary_emb.inv_freq"},
          .tied = false,
          .decoder = [](const ModelConfig& config) {
            auto options = llama_options(config);
            // Absent means 4096; null means none.
            if (!config.is_null("sliding_window"))
              options.window = config.count({"sliding_window"}, kMostPositions, 4096);
            if (config.has("layer_types")) config.fail("layer_types", "are not of mistral");
            return options;
          }};
}

}  // namespace levin::models
