#include "levin/models/language/architecture.h"

namespace levin::models {
namespace {

DecoderOptions opt_options(const ModelConfig& config) {
  DecoderOptions options{.vocab_size = config.count({"vocab_size"}, kMostTokens),
                         .max_positions = config.count({"max_position_embeddings"}, kMostPositions),
                         .num_layers = config.count({"num_hidden_layers"}, kMostLayers),
                         .num_heads = config.count({"num_attention_heads"}, kMostHeads),
                         .hidden_dim = config.count({"hidden_size"}, kMostWidth),
                         .mlp_dim = config.count({"ffn_dim"}, kMostWidth),
                         .norm_eps = 1e-5,  // no key of the config
                         .activation = activation_option(config, {"activation_function"}, "relu")};
  options.dropout = config.fraction("dropout", 0.1);
  options.embedding_dropout = 0;
  options.attention_dropout = config.fraction("attention_dropout", 0);
  options.bias = config.flag("enable_bias", true);
  options.norm_affine = config.flag("layer_norm_elementwise_affine", true);
  options.norm_bias = options.norm_affine;
  options.position_offset = 2;
  options.embedding_dim = config.count({"word_embed_proj_dim"}, kMostWidth, 0);
  const bool pre = config.flag("do_layer_norm_before", true);
  options.block = pre ? "pre" : "post";
  options.final_norm = pre && !config.flag("_remove_final_layer_norm", false);
  return options;
}

}  // namespace

LanguageArchitecture opt_architecture() {
  const std::string theirs = "decoder.layers.#.", ours = "blocks.#.", attention = theirs + "self_attn.";
  return {
      .model_type = "opt",
      .class_name = "OPT",
      .prefix = "model.",
      .rules = {{"tokens.weight", {"decoder.embed_tokens.weight"}},
                {"positions.weight", {"decoder.embed_positions.weight"}},
                {"project_in.weight", {"decoder.project_in.weight"}},
                {"project_out.weight", {"decoder.project_out.weight"}},
                {ours + "norm_1.*", {theirs + "self_attn_layer_norm.*"}},
                {ours + "attention.qkv.*", {attention + "q_proj.*", attention + "k_proj.*", attention + "v_proj.*"}},
                {ours + "attention.out.*", {attention + "out_proj.*"}},
                {ours + "norm_2.*", {theirs + "final_layer_norm.*"}},
                {ours + "mlp.up.*", {theirs + "fc1.*"}},
                {ours + "mlp.down.*", {theirs + "fc2.*"}},
                {"norm.*", {"decoder.final_layer_norm.*"}, WeightLayout::kPlain, "decoder.layer_norm.*"},
                {"head.weight", {"lm_head.weight"}}},
      .ignored = {"decoder.version"},
      .decoder = opt_options};
}

}  // namespace levin::models
