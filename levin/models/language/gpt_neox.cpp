#include "levin/models/language/architecture.h"

namespace levin::models {
namespace {

DecoderOptions gpt_neox_options(const ModelConfig& config) {
  DecoderOptions options{.vocab_size = config.count({"vocab_size"}, kMostTokens),
                         .max_positions = config.count({"max_position_embeddings"}, kMostPositions),
                         .num_layers = config.count({"num_hidden_layers"}, kMostLayers),
                         .num_heads = config.count({"num_attention_heads"}, kMostHeads),
                         .hidden_dim = config.count({"hidden_size"}, kMostWidth),
                         .mlp_dim = config.count({"intermediate_size"}, kMostWidth),
                         .norm_eps = config.number({"layer_norm_eps"}, 1e-5, 0, 1),
                         .activation = activation_option(config, {"hidden_act"}, "gelu")};
  options.dropout = config.fraction("hidden_dropout", 0);
  options.attention_dropout = config.fraction("attention_dropout", 0);
  options.qkv_bias = options.out_bias = config.flag("attention_bias", true);
  options.block = config.flag("use_parallel_residual", true) ? "parallel" : "pre";
  if (options.hidden_dim % options.num_heads != 0)
    config.fail("hidden_size", "is not a multiple of num_attention_heads");
  read_rotary(config, options, 0.25);
  return options;
}

}  // namespace

LanguageArchitecture gpt_neox_architecture() {
  const std::string theirs = "layers.#.", ours = "blocks.#.";
  return {.model_type = "gpt_neox",
          .class_name = "GPTNeoX",
          .prefix = "gpt_neox.",
          .rules = {{"tokens.weight", {"embed_in.weight"}},
                    {ours + "norm_1.*", {theirs + "input_layernorm.*"}},
                    {ours + "attention.qkv.*", {theirs + "attention.query_key_value.*"}, WeightLayout::kByHead},
                    {ours + "attention.out.*", {theirs + "attention.dense.*"}},
                    {ours + "norm_2.*", {theirs + "post_attention_layernorm.*"}},
                    {ours + "mlp.up.*", {theirs + "mlp.dense_h_to_4h.*"}},
                    {ours + "mlp.down.*", {theirs + "mlp.dense_4h_to_h.*"}},
                    {"norm.*", {"final_layer_norm.*"}},
                    {"head.weight", {"embed_out.weight"}, WeightLayout::kPlain, "lm_head.weight"}},
          .ignored = {theirs + "attention.bias", theirs + "attention.masked_bias",
                      theirs + "attention.rotary_emb.inv_freq", "rotary_emb.inv_freq"},
          .tied = false,
          .decoder = gpt_neox_options};
}

}  // namespace levin::models
