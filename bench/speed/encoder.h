#pragma once

// An encoder of text with DistilBERT's sizes, norms and dropout, from Levin's layers.

#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "bench/speed/work.h"
#include "levin/kernels/linear/linear.h"
#include "levin/nn/layers.h"
#include "levin/nn/residual_norm.h"

namespace levin::bench {

struct TextEncoderOptions {
  int64_t vocab_size = 30522;
  int64_t max_positions = 512;
  int64_t num_layers = 6;
  int64_t num_heads = 12;
  int64_t hidden_dim = 768;
  int64_t mlp_dim = 3072;
  int64_t num_classes = 2;
  double dropout = 0.1;
  double attention_dropout = 0.1;
  double head_dropout = 0.2;
};

/// Norms stand after the sums: [B, T, D] to [B, T, D].
struct TextEncoderBlockImpl : torch::nn::Module {
  explicit TextEncoderBlockImpl(const TextEncoderOptions& o)
      : num_heads(o.num_heads),
        attention_dropout(o.attention_dropout),
        dropout(o.dropout),
        qkv(register_module("qkv", nn::Linear(o.hidden_dim, 3 * o.hidden_dim))),
        out(register_module("out", nn::Linear(o.hidden_dim, o.hidden_dim))),
        up(register_module("up", nn::Linear(o.hidden_dim, o.mlp_dim))),
        down(register_module("down", nn::Linear(o.mlp_dim, o.hidden_dim))),
        norm_1(
            register_module("norm_1", nn::ResidualNorm(nn::ResidualNormOptions{.size = o.hidden_dim, .eps = 1e-12}))),
        norm_2(
            register_module("norm_2", nn::ResidualNorm(nn::ResidualNormOptions{.size = o.hidden_dim, .eps = 1e-12}))) {}

  Tensor forward(const Tensor& x) {
    const auto b = x.size(0), t = x.size(1), d = x.size(2);
    const auto parts = qkv(x).view({b, t, 3, num_heads, d / num_heads}).unbind(2);
    const auto mixed =
        at::scaled_dot_product_attention(parts[0].transpose(1, 2), parts[1].transpose(1, 2), parts[2].transpose(1, 2),
                                         {}, is_training() ? attention_dropout : 0.0);
    const auto h = std::get<0>(norm_1(x, out(mixed.transpose(1, 2).reshape({b, t, d}))));
    const auto hidden = kernels::linear_activation(h, up->weight, up->bias, kernels::Activation::kGelu);
    return std::get<0>(norm_2(h, down(hidden), dropout));
  }

  int64_t num_heads;
  double attention_dropout, dropout;
  nn::Linear qkv, out, up, down;
  nn::ResidualNorm norm_1, norm_2;
};
LEVIN_MODULE(TextEncoderBlock);

/// Tokens int64 [B, T] to logits [B, num_classes] of the first token.
struct TextEncoderImpl : torch::nn::Module {
  explicit TextEncoderImpl(const TextEncoderOptions& o = {})
      : options(o),
        tokens(register_module("tokens", nn::Embedding(o.vocab_size, o.hidden_dim))),
        positions(register_module("positions", nn::Embedding(o.max_positions, o.hidden_dim))),
        norm(register_module("norm", nn::ResidualNorm(nn::ResidualNormOptions{.size = o.hidden_dim, .eps = 1e-12}))),
        drop(register_module("drop", nn::Dropout(o.dropout))),
        pre_classifier(register_module("pre_classifier", nn::Linear(o.hidden_dim, o.hidden_dim))),
        classifier(register_module("classifier", nn::Linear(o.hidden_dim, o.num_classes))),
        head_drop(register_module("head_drop", nn::Dropout(o.head_dropout))) {
    for (int64_t i = 0; i < o.num_layers; ++i) {
      blocks.push_back(TextEncoderBlock(o));
      register_module("block_" + std::to_string(i), blocks.back());
    }
  }

  Tensor forward(const Tensor& ids) {
    const auto places = at::arange(ids.size(1), ids.options());
    auto h = drop(std::get<0>(norm(tokens(ids) + positions(places))));
    for (auto& block : blocks) h = block(h);
    return classifier(head_drop(at::relu(pre_classifier(h.select(1, 0)))));
  }

  TextEncoderOptions options;
  nn::Embedding tokens, positions;
  nn::ResidualNorm norm;
  nn::Dropout drop;
  nn::Linear pre_classifier, classifier;
  nn::Dropout head_drop;
  std::vector<TextEncoderBlock> blocks;
};
LEVIN_MODULE(TextEncoder);

inline Work text_encoder_work(const TextEncoderOptions& o, int64_t sequences, int64_t length, StepBytes bytes,
                              Roof roof = {}) {
  Work work(bytes, roof);
  const auto batch = static_cast<double>(sequences), tokens = static_cast<double>(length),
             dim = static_cast<double>(o.hidden_dim), elements = batch * tokens * dim;
  const auto dropout = [&](double n) { work.add(KernelClass::kElementwise, 0, 4 * n * bytes.activation + 2 * n); };
  work.add_norm(batch * tokens, dim);
  if (o.dropout > 0) dropout(elements);
  for (int64_t i = 0; i < o.num_layers; ++i) {
    work.transformer_layer(batch, tokens, dim, static_cast<double>(o.mlp_dim));
    work.add_norm(batch * tokens, dim);
    work.add_norm(batch * tokens, dim);
    if (o.dropout > 0) dropout(elements);
  }
  work.linear(batch, dim, dim);
  work.linear(batch, dim, static_cast<double>(o.num_classes));
  work.cross_entropy(batch, static_cast<double>(o.num_classes));
  return work;
}

}  // namespace levin::bench
