#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>

#include "levin/models/decoder_loss.h"
#include "levin/nn/unit.h"

namespace levin::models {

/// A decoder of tokens. The defaults are GPT-2's.
struct GptOptions {
  int64_t vocab_size = 50257;
  /// The longest sequence.
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
  /// "gelu", "gelu_tanh" (its approximation), "relu", or "silu_gated": silu(gate(x)) * up(x).
  std::string activation = "gelu_tanh";
  /// "learned" or "rotary".
  std::string positions = "learned";
  double rotary_base = 10000;
  /// The last layer shares its weight with the embedding of tokens.
  bool tied_head = true;
  double dropout = 0;
  double attention_dropout = 0;
  /// Rows whose logits are in memory at once when the model computes its loss; 0: all of them.
  int64_t loss_rows = 1024;
};

/// Rows of a table: integers of any shape to [..., D].
struct GptEmbeddingImpl : torch::nn::Module {
  GptEmbeddingImpl(int64_t rows, int64_t dim);
  Tensor forward(const Tensor& ids);

  Tensor weight;
};
LEVIN_MODULE(GptEmbedding);

/// A linear layer that starts from a normal distribution: [..., in] to [..., out].
struct GptLinearImpl : torch::nn::Module {
  GptLinearImpl(int64_t in, int64_t out, bool has_bias, double std);
  Tensor forward(const Tensor& x);

  Tensor weight, bias;
};
LEVIN_MODULE(GptLinear);

/// Layer norm or root mean square norm over the last dimension.
struct GptNormImpl : torch::nn::Module {
  explicit GptNormImpl(const GptOptions& options);
  Tensor forward(const Tensor& x);

  bool rms;
  double eps;
  Tensor weight, bias;
};
LEVIN_MODULE(GptNorm);

/// Causal self attention: [B, T, D] to [B, T, D]. No mask is made: the kernel knows that it is causal.
struct GptAttentionImpl : torch::nn::Module {
  explicit GptAttentionImpl(const GptOptions& options);
  Tensor forward(const Tensor& x, const Tensor& rotary = {});

  int64_t num_heads;
  double dropout;
  GptLinear qkv = nullptr, out = nullptr;
};
LEVIN_MODULE(GptAttention);

struct GptMlpImpl : torch::nn::Module {
  enum class Activation { kGelu, kGeluTanh, kRelu, kSiluGated };
  explicit GptMlpImpl(const GptOptions& options);
  Tensor forward(const Tensor& x);

  Activation activation;
  GptLinear gate = nullptr, up = nullptr, down = nullptr;
};
LEVIN_MODULE(GptMlp);

/// One layer: what is sharded, checkpointed and streamed as one. [B, T, D] to the same; `rotary` are the angles of
/// rotary positions (Gpt makes them once for all layers).
struct GptBlockImpl : torch::nn::Module {
  explicit GptBlockImpl(const GptOptions& options);
  Tensor forward(const Tensor& x, const Tensor& rotary = {});

  double dropout;
  GptNorm norm_1 = nullptr, norm_2 = nullptr;
  GptAttention attention = nullptr;
  GptMlp mlp = nullptr;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Tensor())})  // for torch::nn::Sequential
};
LEVIN_MODULE(GptBlock);

/// Hidden states [B, T, D] to logits [B, T, V], or with targets [B, T] straight to the loss
/// (levin/models/decoder_loss.h).
struct GptHeadImpl : torch::nn::Module {
  explicit GptHeadImpl(const GptOptions& options);
  Tensor forward(const Tensor& x, const Tensor& targets = {});

  int64_t loss_rows;
  Tensor weight;
};
LEVIN_MODULE(GptHead);

/// A decoder-only transformer, norms before the layers.
///
///     auto model = levin::models::gpt2();
///     auto logits = model(tokens);                                          // [B, T] to [B, T, V]
///     auto loss = model(tokens, levin::models::next_tokens(tokens));       // without keeping the logits
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptOptions& options = {});
  /// Tokens int64 [B, T] to logits [B, T, V]; with targets [B, T] to the mean cross entropy of those that are not -100.
  Tensor forward(const Tensor& tokens, const Tensor& targets = {});

  GptOptions options;
  GptEmbedding tokens = nullptr, positions = nullptr;
  std::vector<GptBlock> blocks;
  GptNorm norm = nullptr;
  GptHead head = nullptr;
};
LEVIN_MODULE(Gpt);

/// What can be chosen about a decoder of a named size; 0 is the size's own.
struct GptVariant {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  double dropout = 0;
  double attention_dropout = 0;
  int64_t loss_rows = 1024;
};

/// The options of a named size: "gpt2", "gpt2_medium", "gpt2_large", "gpt2_xl", "gpt_6_7b" (OPT-6.7B's sizes). An
/// unknown name is an Error with the nearest one.
GptOptions gpt_options(std::string_view name, const GptVariant& variant = {});
std::vector<std::string> gpt_names();

Gpt gpt(const GptOptions& options);
Gpt gpt2(const GptVariant& variant = {});
Gpt gpt2_medium(const GptVariant& variant = {});
Gpt gpt2_large(const GptVariant& variant = {});
Gpt gpt2_xl(const GptVariant& variant = {});
Gpt gpt_6_7b(const GptVariant& variant = {});

}  // namespace levin::models
