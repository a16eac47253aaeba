#include "levin/models/language/architecture.h"

namespace levin::models {

LanguageArchitecture roberta_architecture() {
  auto rules = bert_weights();
  std::erase_if(rules, [](const WeightRule& rule) { return rule.ours.starts_with("head."); });
  std::erase_if(rules, [](const WeightRule& rule) { return rule.ours == "classifier.*"; });
  rules.push_back({"head.dense.*", {"lm_head.dense.*"}});
  rules.push_back({"head.norm.*", {"lm_head.layer_norm.*"}});
  rules.push_back({"head.weight", {"lm_head.decoder.weight"}});
  rules.push_back({"head.bias", {"lm_head.bias"}, WeightLayout::kPlain, "lm_head.decoder.bias"});
  rules.push_back({"classifier_dense.*", {"classifier.dense.*"}});
  rules.push_back({"classifier.*", {"classifier.out_proj.*"}});
  return {.model_type = "roberta",
          .class_name = "Roberta",
          .prefix = "roberta.",
          .rules = rules,
          .ignored = {"embeddings.position_ids"},
          .of_heads = {"pooler.", "lm_head.", "classifier."},
          .encoder = [](const ModelConfig& config) {
            auto options = bert_options(config);
            options.positions_from_ids = true;
            options.pad_token = config.integer("pad_token_id", 0, kMostTokens, 1);
            options.classifier = "tanh";
            options.head_activation = "gelu";
            return options;
          }};
}

}  // namespace levin::models
