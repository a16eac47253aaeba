#include <cmath>

#include "levin/models/language/architecture.h"

namespace levin::models {

LanguageArchitecture big_bird_architecture() {
  auto rules = bert_weights();
  for (auto& rule : rules) {
    if (rule.ours == "pooler.*") rule.theirs = {"pooler.*"};
    if (rule.ours == "classifier.*") rule.theirs = {"classifier.out_proj.*"};
  }
  rules.push_back({"classifier_dense.*", {"classifier.dense.*"}});
  return {.model_type = "big_bird",
          .class_name = "BigBird",
          .prefix = "bert.",
          .rules = rules,
          .ignored = {"embeddings.position_ids"},
          .of_heads = {"pooler.", "cls.", "classifier."},
          .encoder = [](const ModelConfig& config) {
            auto options = bert_options(config);
            auto& body = options.body;
            body.activation = activation_option(config, {"hidden_act"}, "gelu_new");
            options.head_activation = options.classifier = body.activation;
            body.qkv_bias = config.flag("use_bias", true);
            if (config.flag("rescale_embeddings", false))
              body.embedding_scale = std::sqrt(static_cast<double>(body.hidden_dim));
            options.dropout_before_norm = true;
            const auto kind = config.text("attention_type", "block_sparse");
            if (kind != "block_sparse" && kind != "original_full")
              config.fail("attention_type", "must be \"block_sparse\" or \"original_full\"");
            if (kind == "block_sparse") options.block_size = config.count({"block_size"}, kMostPositions, 64);
            options.random_blocks = config.integer("num_random_blocks", 0, kMostLayers, 3);
            return options;
          }};
}

}  // namespace levin::models
