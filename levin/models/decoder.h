#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>

#include "levin/models/decoder_loss.h"
#include "levin/nn/residual_norm.h"
#include "levin/nn/unit.h"

namespace levin::models {

/// A decoder of tokens. The defaults are GPT-2's.
struct DecoderOptions {
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
  /// Rows whose logits are in memory at once when the model computes its loss; -1: chosen by size (the default), 0: all
  /// of them.
  int64_t loss_rows = -1;
};

/// Rows of a table: integers of any shape to [..., D].
struct DecoderEmbeddingImpl : torch::nn::Module {
  DecoderEmbeddingImpl(int64_t rows, int64_t dim);
  Tensor forward(const Tensor& ids);

  Tensor weight;
};
LEVIN_MODULE(DecoderEmbedding);

/// A linear layer that starts from a normal distribution: [..., in] to [..., out].
struct DecoderLinearImpl : torch::nn::Module {
  DecoderLinearImpl(int64_t in, int64_t out, bool has_bias, double std);
  Tensor forward(const Tensor& x);

  Tensor weight, bias;
};
LEVIN_MODULE(DecoderLinear);

/// Causal self attention: [B, T, D] to [B, T, D]. No mask is made: the kernel knows that it is causal.
struct DecoderAttentionImpl : torch::nn::Module {
  explicit DecoderAttentionImpl(const DecoderOptions& options);
  Tensor forward(const Tensor& x, const Tensor& rotary = {});

  int64_t num_heads;
  double dropout;
  DecoderLinear qkv = nullptr, out = nullptr;
};
LEVIN_MODULE(DecoderAttention);

struct DecoderMlpImpl : torch::nn::Module {
  enum class Activation { kGelu, kGeluTanh, kRelu, kSiluGated };
  explicit DecoderMlpImpl(const DecoderOptions& options);
  Tensor forward(const Tensor& x);
  /// silu(gate(x)) * up(x).
  Tensor gated(const Tensor& x);

  Activation activation;
  DecoderLinear gate = nullptr, up = nullptr, down = nullptr;
};
LEVIN_MODULE(DecoderMlp);

/// One layer: what is sharded, checkpointed and streamed as one. [B, T, D] to the same; `rotary` are the angles of
/// rotary positions (Decoder makes them once for all layers).
struct DecoderBlockImpl : torch::nn::Module {
  explicit DecoderBlockImpl(const DecoderOptions& options);
  Tensor forward(const Tensor& x, const Tensor& rotary = {});
  /// The same without the last sum, and with that of the block before.
  nn::OpenStream open(nn::OpenStream stream, const Tensor& rotary);

  double dropout;
  nn::ResidualNorm norm_1 = nullptr, norm_2 = nullptr;
  DecoderAttention attention = nullptr;
  DecoderMlp mlp = nullptr;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Tensor())})  // for torch::nn::Sequential
};
LEVIN_MODULE(DecoderBlock);

/// Hidden states [B, T, D] to logits [B, T, V], or with targets [B, T] straight to the loss
/// (levin/models/decoder_loss.h).
struct DecoderHeadImpl : torch::nn::Module {
  explicit DecoderHeadImpl(const DecoderOptions& options);
  Tensor forward(const Tensor& x, const Tensor& targets = {});

  int64_t loss_rows;
  Tensor weight;
};
LEVIN_MODULE(DecoderHead);

/// A decoder-only transformer, norms before the layers.
///
///     auto model = levin::models::gpt2();
///     auto logits = model(tokens);                                          // [B, T] to [B, T, V]
///     auto loss = model(tokens, levin::models::next_tokens(tokens));       // without keeping the logits
struct DecoderImpl : torch::nn::Module {
  explicit DecoderImpl(const DecoderOptions& options = {});
  /// Tokens int64 [B, T] to logits [B, T, V]; with targets [B, T] to the mean cross entropy of those that are not -100.
  Tensor forward(const Tensor& tokens, const Tensor& targets = {});

  DecoderOptions options;
  DecoderEmbedding tokens = nullptr, positions = nullptr;
  std::vector<DecoderBlock> blocks;
  nn::ResidualNorm norm = nullptr;
  DecoderHead head = nullptr;
};
LEVIN_MODULE(Decoder);

/// A decoder of any options; sizes with a name are in decoder_sizes.h.
Decoder decoder(const DecoderOptions& options);

}  // namespace levin::models
