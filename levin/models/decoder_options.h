#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levin/nn/experts/options.h"

namespace levin::models {

/// How the frequencies of rotary positions are stretched for texts longer than those of training. Names and defaults
/// are those of transformers' `rope_parameters`.
struct RotaryScaling {
  /// "none", "linear", "dynamic", "yarn" or "llama3".
  std::string type = "none";
  double factor = 1;
  /// The longest sequence of the original training; 0: max_positions.
  int64_t original_positions = 0;
  /// llama3: wavelengths above original_positions / low are divided by factor, those below original_positions / high
  /// are kept, those between are blended.
  double low_freq_factor = 1, high_freq_factor = 4;
  /// yarn: the rotations between which frequencies are blended.
  double beta_fast = 32, beta_slow = 1;
  /// yarn: the bounds of the blend are rounded outwards.
  bool truncate = true;
  /// yarn: multiplies cosines and sines; none: computed from factor, mscale and mscale_all_dim.
  std::optional<double> attention_factor = {};
  double mscale = 0, mscale_all_dim = 0;
};

/// A transformer over tokens. The defaults are GPT-2's.
struct DecoderOptions {
  int64_t vocab_size = 50257;
  /// The longest sequence. "alibi" and dynamic rotary positions have no longest.
  int64_t max_positions = 1024;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t hidden_dim = 768;
  /// Width inside the MLP; 0: four times hidden_dim.
  int64_t mlp_dim = 0;
  /// Linear layers and layer norms have biases.
  bool bias = true;
  /// "layer" or "rms".
  std::string norm = "layer";
  double norm_eps = 1e-5;
  /// "gelu", "gelu_tanh" (its approximation), "quick_gelu", "relu", "silu" or "tanh". With "_gated" behind it the MLP
  /// is down(activation(gate(x)) * up(x)).
  std::string activation = "gelu_tanh";
  /// "learned", "rotary", "alibi" or "none".
  std::string positions = "learned";
  double rotary_base = 10000;
  /// The last layer shares its weight with the embedding of tokens.
  bool tied_head = true;
  double dropout = 0;
  double attention_dropout = 0;
  /// Rows whose logits are in memory at once when the model computes its loss; -1: chosen by size (the default), 0: all
  /// of them.
  int64_t loss_rows = -1;

  /// Heads of keys and values; 0: num_heads. A divisor of num_heads (grouped-query attention).
  int64_t kv_heads = 0;
  /// Width of a head; 0: hidden_dim / num_heads.
  int64_t head_dim = 0;
  /// Biases of one kind of layer; none: as `bias` says.
  std::optional<bool> qkv_bias = {}, out_bias = {}, mlp_bias = {}, norm_bias = {};
  /// Norms have a weight.
  bool norm_affine = true;
  /// Root mean square norms multiply by 1 + weight, in float32 (Gemma).
  bool norm_unit_offset = false;
  /// Where the norms of a block are: "pre" x + f(norm(x)), "post" norm(x + f(x)), "parallel" x + attention(norm_1(x)) +
  /// mlp(norm_2(x)), "residual" norm(x) + f(norm(x)), or "sandwich" x + norm(f(norm(x))).
  std::string block = "pre";
  /// A position attends to itself and those before it.
  bool causal = true;
  /// A norm behind the last block.
  bool final_norm = true;
  /// A layer norm of the embedded tokens (BLOOM).
  bool embedding_norm = false;
  /// Multiplies the embedded tokens, rounded to their dtype (Gemma: the root of hidden_dim).
  double embedding_scale = 1;
  /// Width of the embedding and of the head; 0: hidden_dim. Another one is projected (OPT-350m).
  int64_t embedding_dim = 0;
  /// Dropout of the embedded tokens, and of what attention adds to the stream (DistilBERT: 0); none: `dropout`.
  std::optional<double> embedding_dropout = {}, attention_out_dropout = {};
  /// The first row of learned positions (OPT: 2).
  int64_t position_offset = 0;
  /// Dimensions of a head that are rotated; 0: all. An odd number is rounded up, with its own value as the divisor.
  int64_t rotary_dim = 0;
  RotaryScaling rotary_scaling = {};
  /// A root mean square norm of each head of queries and keys (Qwen3).
  bool qk_norm = false;
  /// That norm is of all heads together (OLMoE).
  bool qk_norm_wide = false;
  /// Multiplies the scores; 0: the reciprocal root of the width of a head.
  double attention_scale = 0;
  /// Scores are also divided by the number of the layer, counted from 1.
  bool scale_by_layer = false;
  /// Keys that a query sees, itself included; 0: all before it.
  int64_t window = 0;
  /// The layers that have the window; empty: all.
  std::vector<bool> windowed_layers = {};
  /// cap * tanh(x / cap) of scores, and of logits; 0: none (Gemma 2).
  double attention_softcap = 0, logit_softcap = 0;
  /// Where this rank has some of the heads only (tensor parallelism): how many there are in all, and the number of the
  /// first one here. 0: num_heads and kv_heads are all of them.
  int64_t all_heads = 0, all_kv_heads = 0, first_head = 0;
  /// A mixture of experts in the place of the MLP; a count of 0: none. `dim` is hidden_dim, a width of 0 mlp_dim, and
  /// the activation is that of the MLP, which must be gated.
  nn::ExpertsOptions experts = {};
  /// The layers that have experts; empty: all.
  std::vector<bool> expert_layers = {};
  /// Width of an MLP beside the experts that every token goes through, times a gate of its own (Qwen2-MoE); 0: none.
  int64_t shared_expert_dim = 0;
  /// In training the loss has so much of nn::balance_loss, and of nn::router_z_loss, added; 0: none.
  double balance_loss = 0, router_z_loss = 0;
  /// Classes of a classifier of whole sequences, in place of the head over the vocabulary; 0: none.
  int64_t num_labels = 0;
  /// The token that fills up rows: a classifier reads the last token that is another one. -1: there is none.
  int64_t pad_token = -1;

  int64_t head_width() const { return head_dim > 0 ? head_dim : hidden_dim / num_heads; }
  int64_t key_heads() const { return kv_heads > 0 ? kv_heads : num_heads; }
  int64_t mlp_width() const { return mlp_dim > 0 ? mlp_dim : 4 * hidden_dim; }
  int64_t embedding_width() const { return embedding_dim > 0 ? embedding_dim : hidden_dim; }
  /// Whether no sequence may be longer than max_positions.
  bool bounded() const { return positions == "learned" || (positions == "rotary" && rotary_scaling.type != "dynamic"); }
  bool has_experts(int64_t layer) const {
    return experts.count > 0 && (expert_layers.empty() || expert_layers[static_cast<size_t>(layer)]);
  }
  bool gated() const { return activation.ends_with("_gated"); }
};

/// Those of a layer; an Error of one line where they do not go with the rest.
nn::ExpertsOptions experts_of(const DecoderOptions& options);

/// Throws an Error of one line where a value is not allowed or two do not go together.
void check_options(const DecoderOptions& options);

}  // namespace levin::models
