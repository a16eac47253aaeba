#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace levin::planner {

/// The sizes of a transformer, all that its cost follows from.
struct ModelShape {
  enum class Kind { kDecoder, kEncoder, kVision };

  std::string name;
  Kind kind = Kind::kDecoder;
  int64_t layers = 12;
  int64_t width = 768;
  int64_t heads = 12;
  /// Heads of keys and values.
  int64_t kv_heads = 12;
  int64_t head_width = 64;
  int64_t mlp_width = 3072;
  /// The MLP is down(activation(gate(x)) * up(x)).
  bool gated = false;
  bool bias = true;
  bool rms_norm = false;
  /// 0: no embedding of tokens (vision).
  int64_t vocabulary = 50257;
  bool tied_head = true;
  /// Rows of learned positions; 0: none.
  int64_t positions = 1024;
  /// Tokens of a sample: of a sequence, or the patches of an image and its class token.
  int64_t sequence = 1024;
  /// Numbers of a patch (vision), and classes of a classifier; 0: none.
  int64_t patch = 0;
  int64_t classes = 0;
  /// Mixture of experts in every MLP; 0: none. Each token goes to `experts_per_token` of them.
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  /// Width of an MLP beside them that every token goes through; 0: none.
  int64_t shared_expert_width = 0;

  int64_t query_width() const { return heads * head_width; }
  int64_t key_width() const { return kv_heads * head_width; }
  /// Parameters of one layer outside of its experts, of the MLP or of all experts, and of what is before and behind.
  double attention_parameters() const;
  double mlp_parameters() const;
  /// Of these, what expert parallelism spreads: all experts without the router and the shared one.
  double expert_parameters() const;
  double layer_parameters() const { return attention_parameters() + mlp_parameters(); }
  double embedding_parameters() const;
  /// The last norm and the head; a tied head has no weight of its own.
  double head_parameters() const;
  double parameters() const;
  /// Floating-point operations of one sample, forward and backward, without recomputation. A multiply-add is two.
  /// `all_pairs`: attention counts every pair of tokens, as published figures do (Narayanan et al. 2021); else a causal
  /// model those that its mask leaves.
  double model_flops(bool all_pairs = true) const;
};

/// By name (planned_models) or from a folder with a config.json. `sequence` 0: the model's own. An unknown name is an
/// Error with the nearest one.
ModelShape model_shape(const std::string& name_or_folder, int64_t sequence = 0);
/// Names that model_shape knows.
std::vector<std::string> planned_models();

}  // namespace levin::planner
