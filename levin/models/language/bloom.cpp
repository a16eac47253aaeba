#include "levin/models/language/architecture.h"

namespace levin::models {
namespace {

DecoderOptions bloom_options(const ModelConfig& config) {
  // The slices leave out the biases of the output layers: other numbers, not only another order of sums.
  if (config.flag("slow_but_exact", false) && config.integer("pretraining_tp", 1, kMostHeads, 1) > 1)
    config.fail("slow_but_exact", "with a pretraining_tp above 1 is not supported: transformers drops biases there");
  DecoderOptions options{.vocab_size = config.count({"vocab_size"}, kMostTokens),
                         .max_positions = config.count({"seq_length"}, kMostPositions, 2048),
                         .num_layers = config.count({"n_layer", "num_hidden_layers"}, kMostLayers),
                         .num_heads = config.count({"n_head", "num_attention_heads"}, kMostHeads),
                         .hidden_dim = config.count({"n_embed", "hidden_size"}, kMostWidth),
                         .norm_eps = config.number({"layer_norm_epsilon"}, 1e-5, 0, 1),
                         .positions = "alibi"};
  options.dropout = config.fraction("hidden_dropout", 0);
  options.embedding_dropout = 0;
  options.attention_dropout = config.fraction("attention_dropout", 0);
  options.embedding_norm = true;
  if (config.flag("apply_residual_connection_post_layernorm", false)) options.block = "residual";
  return options;
}

}  // namespace

LanguageArchitecture bloom_architecture() {
  const std::string theirs = "h.#.", ours = "blocks.#.";
  return {.model_type = "bloom",
          .class_name = "Bloom",
          .prefix = "transformer.",
          .rules = {{"tokens.weight", {"word_embeddings.weight"}},
                    {"embedding_norm.*", {"word_embeddings_layernorm.*"}},
                    {ours + "norm_1.*", {theirs + "input_layernorm.*"}},
                    {ours + "attention.qkv.*", {theirs + "self_attention.query_key_value.*"}, WeightLayout::kByHead},
                    {ours + "attention.out.*", {theirs + "self_attention.dense.*"}},
                    {ours + "norm_2.*", {theirs + "post_attention_layernorm.*"}},
                    {ours + "mlp.up.*", {theirs + "mlp.dense_h_to_4h.*"}},
                    {ours + "mlp.down.*", {theirs + "mlp.dense_4h_to_h.*"}},
                    {"norm.*", {"ln_f.*"}},
                    {"head.weight", {"lm_head.weight"}}},
          .decoder = bloom_options};
}

}  // namespace levin::models
