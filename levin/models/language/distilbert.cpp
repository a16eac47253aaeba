#include "levin/models/language/architecture.h"

namespace levin::models {
namespace {

TextEncoderOptions distilbert_options(const ModelConfig& config) {
  DecoderOptions body{.vocab_size = config.count({"vocab_size"}, kMostTokens),
                      .max_positions = config.count({"max_position_embeddings"}, kMostPositions),
                      .num_layers = config.count({"n_layers", "num_hidden_layers"}, kMostLayers),
                      .num_heads = config.count({"n_heads", "num_attention_heads"}, kMostHeads),
                      .hidden_dim = config.count({"dim", "hidden_size"}, kMostWidth),
                      .mlp_dim = config.count({"hidden_dim"}, kMostWidth),
                      .norm_eps = 1e-12,  // no key of the config
                      .activation = activation_option(config, {"activation"}, "gelu")};
  body.dropout = config.fraction("dropout", 0.1);
  body.attention_out_dropout = 0;
  body.attention_dropout = config.fraction("attention_dropout", 0.1);
  TextEncoderOptions options{.body = encoder_body(body)};
  options.pad_token = config.integer("pad_token_id", 0, kMostTokens, 0);
  options.num_labels = labels_of(config);
  options.classifier = "relu";
  options.classifier_dropout = config.fraction("seq_classif_dropout", 0.2);
  options.drops_tokens_as_body = true;
  options.head_activation = body.activation;
  return options;
}

}  // namespace

LanguageArchitecture distilbert_architecture() {
  const std::string theirs = "transformer.layer.#.", ours = "blocks.#.", attention = theirs + "attention.";
  return {.model_type = "distilbert",
          .class_name = "DistilBert",
          .prefix = "distilbert.",
          .rules = {{"tokens.weight", {"embeddings.word_embeddings.weight"}},
                    {"positions.weight", {"embeddings.position_embeddings.weight"}},
                    {"embedding_norm.*", {"embeddings.LayerNorm.*"}},
                    {ours + "attention.qkv.*", {attention + "q_lin.*", attention + "k_lin.*", attention + "v_lin.*"}},
                    {ours + "attention.out.*", {attention + "out_lin.*"}},
                    {ours + "norm_1.*", {theirs + "sa_layer_norm.*"}},
                    {ours + "mlp.up.*", {theirs + "ffn.lin1.*"}},
                    {ours + "mlp.down.*", {theirs + "ffn.lin2.*"}},
                    {ours + "norm_2.*", {theirs + "output_layer_norm.*"}},
                    {"head.dense.*", {"vocab_transform.*"}},
                    {"head.norm.*", {"vocab_layer_norm.*"}},
                    {"head.weight", {"vocab_projector.weight"}},
                    {"head.bias", {"vocab_projector.bias"}},
                    {"classifier_dense.*", {"pre_classifier.*"}},
                    {"classifier.*", {"classifier.*"}},
                    {"token_classifier.*", {"classifier.*"}}},
          .ignored = {"embeddings.position_ids"},
          .of_heads = {"vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "pre_classifier.", "classifier."},
          .encoder = distilbert_options};
}

}  // namespace levin::models
