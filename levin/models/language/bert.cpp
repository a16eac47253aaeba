#include "levin/models/language/architecture.h"

namespace levin::models {

TextEncoderOptions bert_options(const ModelConfig& config) {
  config.refuse_unless("is_decoder", false, "Levin's encoders attend both ways");
  config.refuse_unless("add_cross_attention", false, "there is no other model beside it");
  const auto kind = config.text("position_embedding_type", "absolute");
  if (kind != "absolute") config.fail("position_embedding_type", "must be \"absolute\"");
  DecoderOptions body{.vocab_size = config.count({"vocab_size"}, kMostTokens),
                      .max_positions = config.count({"max_position_embeddings"}, kMostPositions),
                      .num_layers = config.count({"num_hidden_layers"}, kMostLayers),
                      .num_heads = config.count({"num_attention_heads"}, kMostHeads),
                      .hidden_dim = config.count({"hidden_size"}, kMostWidth),
                      .mlp_dim = config.count({"intermediate_size"}, kMostWidth),
                      .norm_eps = config.number({"layer_norm_eps"}, 1e-12, 0, 1),
                      .activation = activation_option(config, {"hidden_act"}, "gelu")};
  body.dropout = config.fraction("hidden_dropout_prob", 0.1);
  body.attention_dropout = config.fraction("attention_probs_dropout_prob", 0.1);
  TextEncoderOptions options{.body = encoder_body(body)};
  options.token_types = config.count({"type_vocab_size"}, kMostTokens, 2);
  options.pad_token = config.integer("pad_token_id", 0, kMostTokens, 0);
  options.num_labels = labels_of(config);
  options.classifier_dropout = config.fraction("classifier_dropout", body.dropout);
  options.head_activation = body.activation;
  return options;
}

std::vector<WeightRule> bert_weights() {
  const std::string theirs = "encoder.layer.#.", ours = "blocks.#.", attention = theirs + "attention.";
  const std::string self = attention + "self.";
  return {
      {"tokens.weight", {"embeddings.word_embeddings.weight"}},
      {"positions.weight", {"embeddings.position_embeddings.weight"}},
      {"types.weight", {"embeddings.token_type_embeddings.weight"}},
      {"embedding_norm.*", {"embeddings.LayerNorm.*"}},
      {ours + "attention.qkv.*", {self + "query.*", self + "key.*", self + "value.*"}},
      {ours + "attention.out.*", {attention + "output.dense.*"}},
      {ours + "norm_1.*", {attention + "output.LayerNorm.*"}},
      {ours + "mlp.up.*", {theirs + "intermediate.dense.*"}},
      {ours + "mlp.down.*", {theirs + "output.dense.*"}},
      {ours + "norm_2.*", {theirs + "output.LayerNorm.*"}},
      {"pooler.*", {"pooler.dense.*"}},
      {"head.dense.*", {"cls.predictions.transform.dense.*"}},
      {"head.norm.*", {"cls.predictions.transform.LayerNorm.*"}},
      {"head.weight", {"cls.predictions.decoder.weight"}},
      {"head.bias", {"cls.predictions.bias"}, WeightLayout::kPlain, "cls.predictions.decoder.bias"},
      {"classifier.*", {"classifier.*"}},
      {"token_classifier.*", {"classifier.*"}},
  };
}

LanguageArchitecture bert_architecture() {
  return {.model_type = "bert",
          .class_name = "Bert",
          .prefix = "bert.",
          .rules = bert_weights(),
          .ignored = {"embeddings.position_ids"},
          .of_heads = {"pooler.", "cls.", "classifier."},
          .encoder = bert_options};
}

}  // namespace levin::models
