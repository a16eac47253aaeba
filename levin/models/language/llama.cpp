#include "levin/models/language/architecture.h"

namespace levin::models {

DecoderOptions llama_options(const ModelConfig& config, int64_t head_dim) {
  DecoderOptions options{.vocab_size = config.count({"vocab_size"}, kMostTokens),
                         .max_positions = config.count({"max_position_embeddings"}, kMostPositions),
                         .num_layers = config.count({"num_hidden_layers"}, kMostLayers),
                         .num_heads = config.count({"num_attention_heads"}, kMostHeads),
                         .hidden_dim = config.count({"hidden_size"}, kMostWidth),
                         .mlp_dim = config.count({"intermediate_size"}, kMostWidth),
                         .bias = false,
                         .norm = "rms",
                         .norm_eps = config.number({"rms_norm_eps"}, 1e-6, 0, 1),
                         .activation = activation_option(config, {"hidden_act"}, "silu") + "_gated"};
  options.attention_dropout = config.fraction("attention_dropout", 0);
  options.kv_heads = config.count({"num_key_value_heads"}, kMostHeads, options.num_heads);
  options.head_dim = config.count({"head_dim"}, kMostWidth, head_dim);
  if (options.head_dim == 0 && options.hidden_dim % options.num_heads != 0)
    config.fail("hidden_size", "is not a multiple of num_attention_heads");
  if (options.num_heads % options.kv_heads != 0)
    config.fail("num_attention_heads", "is not a multiple of num_key_value_heads");
  read_rotary(config, options);
  return options;
}

std::vector<WeightRule> llama_weights() {
  const std::string theirs = "layers.#.", ours = "blocks.#.", attention = theirs + "self_attn.";
  return {
      {"tokens.weight", {"embed_tokens.weight"}},
      {ours + "norm_1.weight", {theirs + "input_layernorm.weight"}},
      {ours + "attention.qkv.*", {attention + "q_proj.*", attention + "k_proj.*", attention + "v_proj.*"}},
      {ours + "attention.out.*", {attention + "o_proj.*"}},
      {ours + "attention.norm_q.weight", {attention + "q_norm.weight"}},
      {ours + "attention.norm_k.weight", {attention + "k_norm.weight"}},
      {ours + "norm_2.weight", {theirs + "post_attention_layernorm.weight"}},
      {ours + "mlp.gate.*", {theirs + "mlp.gate_proj.*"}},
      {ours + "mlp.up.*", {theirs + "mlp.up_proj.*"}},
      {ours + "mlp.down.*", {theirs + "mlp.down_proj.*"}},
      {"norm.weight", {"norm.weight"}},
      {"head.weight", {"lm_head.weight"}},
  };
}

LanguageArchitecture llama_architecture() {
  return {.model_type = "llama",
          .class_name = "Llama",
          .prefix = "model.",
          .rules = llama_weights(),
          .ignored = {"layers.#.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"},
          .tied = false,
          .decoder = [](const ModelConfig& config) {
            auto options = llama_options(config);
            options.qkv_bias = options.out_bias = config.flag("attention_bias", false);
            options.mlp_bias = config.flag("mlp_bias", false);
            return options;
          }};
}

}  // namespace levin::models
