#include "levin/models/language/architecture.h"

namespace levin::models {
namespace {

DecoderOptions gpt2_options(const ModelConfig& config) {
  config.refuse_unless("add_cross_attention", false, "Levin's GPT-2 has no encoder beside it");
  DecoderOptions options{.vocab_size = config.count({"vocab_size"}, kMostTokens),
                         .max_positions = config.count({"n_positions", "max_position_embeddings"}, kMostPositions),
                         .num_layers = config.count({"n_layer", "num_hidden_layers"}, kMostLayers),
                         .num_heads = config.count({"n_head", "num_attention_heads"}, kMostHeads),
                         .hidden_dim = config.count({"n_embd", "hidden_size"}, kMostWidth),
                         .mlp_dim = config.count({"n_inner"}, kMostWidth, 0),
                         .norm_eps = config.number({"layer_norm_epsilon"}, 1e-5, 0, 1),
                         .activation = activation_option(config, {"activation_function"}, "gelu_new")};
  options.dropout = config.fraction("resid_pdrop", 0.1);
  options.embedding_dropout = config.fraction("embd_pdrop", 0.1);
  options.attention_dropout = config.fraction("attn_pdrop", 0.1);
  if (!config.flag("scale_attn_weights", true)) options.attention_scale = 1;
  options.scale_by_layer = config.flag("scale_attn_by_inverse_layer_idx", false);
  return options;
}

}  // namespace

LanguageArchitecture gpt2_architecture() {
  const std::string theirs = "h.#.", ours = "blocks.#.";
  const auto transposed = WeightLayout::kTransposed;
  return {.model_type = "gpt2",
          .class_name = "GPT2",
          .prefix = "transformer.",
          .rules = {{"tokens.weight", {"wte.weight"}},
                    {"positions.weight", {"wpe.weight"}},
                    {ours + "norm_1.*", {theirs + "ln_1.*"}},
                    {ours + "attention.qkv.*", {theirs + "attn.c_attn.*"}, transposed},
                    {ours + "attention.out.*", {theirs + "attn.c_proj.*"}, transposed},
                    {ours + "norm_2.*", {theirs + "ln_2.*"}},
                    {ours + "mlp.up.*", {theirs + "mlp.c_fc.*"}, transposed},
                    {ours + "mlp.down.*", {theirs + "mlp.c_proj.*"}, transposed},
                    {"norm.*", {"ln_f.*"}},
                    {"head.weight", {"lm_head.weight"}}},
          .ignored = {theirs + "attn.bias", theirs + "attn.masked_bias"},
          .decoder = gpt2_options};
}

}  // namespace levin::models
