#include "levin/models/decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/stack.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/kernels/activation.h"
#include "levin/kernels/attention.h"
#include "levin/kernels/linear.h"
#include "levin/nn/fp8_mlp.h"
#include "levin/nn/tie.h"

namespace levin::models {
namespace {

constexpr double kInitStd = 0.02;

/// A name in the tree of parameters, nothing else.
struct DecoderGroupImpl : torch::nn::Module {};

Tensor dropped(const Tensor& x, double p, bool training) {
  return p > 0 && training ? at::dropout(x, p, true) : x;
}

/// Layers that write into the stream of hidden states start smaller the more of them there are.
double residual_std(const DecoderOptions& options) {
  return kInitStd / std::sqrt(2.0 * static_cast<double>(options.num_layers));
}

int64_t mlp_width(const DecoderOptions& options) {
  return options.mlp_dim > 0 ? options.mlp_dim : 4 * options.hidden_dim;
}

size_t word_index(const char* what, const std::string& word, std::span<const std::string> known) {
  const auto found = std::find(known.begin(), known.end(), word);
  if (found == known.end()) fail_unknown("decoder", what, word, known);
  return static_cast<size_t>(found - known.begin());
}

const std::array<std::string, 2> kNorms{"layer", "rms"};
const std::array<std::string, 2> kPositions{"learned", "rotary"};
const std::array<std::string, 4> kActivations{"gelu", "gelu_tanh", "relu",
                                              "silu_gated"};  // as DecoderMlpImpl::Activation

/// Cosines and sines of the angles of each position: [2, T, D / H / 2], float32.
Tensor rotary_angles(const DecoderOptions& options, int64_t length, const Tensor& like) {
  const auto head = options.hidden_dim / options.num_heads;
  const auto kind = at::TensorOptions().dtype(at::kFloat).device(like.device());
  const auto powers = at::arange(0, head, 2, kind) / static_cast<double>(head);
  const auto angles = at::outer(at::arange(length, kind), at::pow(options.rotary_base, powers).reciprocal());
  return at::stack({angles.cos(), angles.sin()});
}

nn::ResidualNorm decoder_norm(const DecoderOptions& options) {
  const bool rms = word_index("norm", options.norm, kNorms) == 1;
  return nn::ResidualNorm(nn::ResidualNormOptions{
      .size = options.hidden_dim, .eps = options.norm_eps, .rms = rms, .bias = options.bias && !rms});
}

void check_options(const DecoderOptions& o) {
  LEVIN_CHECK(o.vocab_size > 0 && o.max_positions > 0 && o.num_layers > 0 && o.hidden_dim > 0 && o.mlp_dim >= 0,
              "[decoder] vocab_size, max_positions, num_layers and hidden_dim must be positive, mlp_dim 0 or more");
  LEVIN_CHECK(o.num_heads > 0 && o.hidden_dim % o.num_heads == 0, "[decoder] hidden_dim ", o.hidden_dim,
              " is not a multiple of num_heads ", o.num_heads);
  LEVIN_CHECK(o.loss_rows >= -1, "[decoder] loss_rows ", o.loss_rows, " must be -1 (chosen by size), 0 (all) or more");
  word_index("norm", o.norm, kNorms);
  word_index("activation", o.activation, kActivations);
  word_index("positions", o.positions, kPositions);
  LEVIN_CHECK(o.positions != "rotary" || o.hidden_dim / o.num_heads % 2 == 0,
              "[decoder] rotary positions need heads of even width, not ", o.hidden_dim / o.num_heads);
}

}  // namespace

// ---- layers

DecoderEmbeddingImpl::DecoderEmbeddingImpl(int64_t rows, int64_t dim) {
  weight = register_parameter("weight", torch::empty({rows, dim}));
  torch::nn::init::normal_(weight, 0, kInitStd);
}

Tensor DecoderEmbeddingImpl::forward(const Tensor& ids) {
  return at::embedding(weight, ids);
}

DecoderLinearImpl::DecoderLinearImpl(int64_t in, int64_t out, bool has_bias, double std) {
  weight = register_parameter("weight", torch::empty({out, in}));
  torch::nn::init::normal_(weight, 0, std);
  if (has_bias) bias = register_parameter("bias", torch::zeros({out}));
}

Tensor DecoderLinearImpl::forward(const Tensor& x) {
  return kernels::linear(x, weight, bias);
}

// ---- block

DecoderAttentionImpl::DecoderAttentionImpl(const DecoderOptions& options)
    : num_heads(options.num_heads), dropout(options.attention_dropout) {
  const auto dim = options.hidden_dim;
  qkv = register_module("qkv", DecoderLinear(dim, 3 * dim, options.bias, kInitStd));
  out = register_module("out", DecoderLinear(dim, dim, options.bias, residual_std(options)));
}

Tensor DecoderAttentionImpl::forward(const Tensor& x, const Tensor& rotary) {
  const auto b = x.size(0), t = x.size(1), d = x.size(2);
  return out(kernels::attention(qkv(x).view({b, t, 3, num_heads, d / num_heads}),
                                {.causal = true, .dropout = is_training() ? dropout : 0.0, .rotary = rotary}));
}

DecoderMlpImpl::DecoderMlpImpl(const DecoderOptions& options)
    : activation(static_cast<Activation>(word_index("activation", options.activation, kActivations))) {
  const auto dim = options.hidden_dim, width = mlp_width(options);
  if (activation == Activation::kSiluGated)
    gate = register_module("gate", DecoderLinear(dim, width, options.bias, kInitStd));
  up = register_module("up", DecoderLinear(dim, width, options.bias, kInitStd));
  down = register_module("down", DecoderLinear(width, dim, options.bias, residual_std(options)));
}

Tensor DecoderMlpImpl::gated(const Tensor& x) {
  const auto opened = gate(x);
  return kernels::gated_silu(opened, up(x));
}

Tensor DecoderMlpImpl::forward(const Tensor& x) {
  if (activation == Activation::kSiluGated) return down(gated(x));
  const auto kind = activation == Activation::kRelu   ? kernels::Activation::kRelu
                    : activation == Activation::kGelu ? kernels::Activation::kGelu
                                                      : kernels::Activation::kGeluTanh;
  if (const auto result = nn::fp8_mlp(x, up, kind, down)) return *result;
  return down(up->num_interceptors() > 0 ? kernels::activation(up(x), kind)
                                         : kernels::linear_activation(x, up->weight, up->bias, kind));
}

DecoderBlockImpl::DecoderBlockImpl(const DecoderOptions& options) : dropout(options.dropout) {
  norm_1 = register_module("norm_1", decoder_norm(options));
  attention = register_module("attention", DecoderAttention(options));
  norm_2 = register_module("norm_2", decoder_norm(options));
  mlp = register_module("mlp", DecoderMlp(options));
}

nn::OpenStream DecoderBlockImpl::open(nn::OpenStream stream, const Tensor& rotary) {
  auto [normed, x] = norm_1(stream.sum, stream.branch);
  stream = {};  // nobody needs it any more
  const auto [inner, h] = norm_2(x, attention(std::exchange(normed, {}), rotary), dropout);
  return {h, dropped(mlp(inner), dropout, is_training())};
}

Tensor DecoderBlockImpl::forward(const Tensor& x, const Tensor& rotary) {
  return open({x, {}}, rotary).closed();
}

// ---- the model

DecoderHeadImpl::DecoderHeadImpl(const DecoderOptions& options) : loss_rows(options.loss_rows) {
  weight = register_parameter("weight", torch::empty({options.vocab_size, options.hidden_dim}));
  if (!options.tied_head) torch::nn::init::normal_(weight, 0, kInitStd);
}

Tensor DecoderHeadImpl::forward(const Tensor& x, const Tensor& targets) {
  return targets.defined() ? linear_cross_entropy(x, weight, targets, loss_rows) : at::linear(x, weight);
}

DecoderImpl::DecoderImpl(const DecoderOptions& asked) : options(asked) {
  check_options(options);
  tokens = register_module("tokens", DecoderEmbedding(options.vocab_size, options.hidden_dim));
  if (options.positions == "learned")
    positions = register_module("positions", DecoderEmbedding(options.max_positions, options.hidden_dim));
  auto layers = register_module("blocks", std::make_shared<DecoderGroupImpl>());
  for (int64_t i = 0; i < options.num_layers; ++i) {
    blocks.push_back(DecoderBlock(options));
    layers->register_module(std::to_string(i), blocks.back());
  }
  norm = register_module("norm", decoder_norm(options));
  head = register_module("head", DecoderHead(options));
  if (options.tied_head) levin::tie(*this, head->weight, tokens->weight);
}

Tensor DecoderImpl::forward(const Tensor& ids, const Tensor& targets) {
  LEVIN_CHECK(ids.dim() == 2 && (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt),
              "[decoder] tokens must be integers [B, T], got ", ids.scalar_type(), " ", ids.sizes());
  const auto length = ids.size(1);
  LEVIN_CHECK(length <= options.max_positions, "[decoder] ", length, " tokens are more than the ",
              options.max_positions, " of max_positions");
  auto x = tokens(ids);
  Tensor rotary;
  if (positions)
    x = x + positions(at::arange(length, ids.options()));
  else
    rotary = rotary_angles(options, length, x);
  nn::OpenStream h{dropped(std::exchange(x, {}), options.dropout, is_training()), {}};
  for (const auto& block : blocks) h = nn::open_block<&DecoderBlockImpl::open>(block, std::move(h), rotary);
  return head(std::get<0>(norm(h.sum, h.branch)), targets);
}

Decoder decoder(const DecoderOptions& options) {
  return Decoder(options);
}

}  // namespace levin::models
