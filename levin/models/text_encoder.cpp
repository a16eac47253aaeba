#include "levin/models/text_encoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/div.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/models/decoder_positions.h"
#include "levin/nn/tie.h"

namespace levin::models {
namespace {

constexpr double kEncoderStd = 0.02;
const std::array<std::string, 4> kTextHeads{"none", "masked_lm", "sequence_classification", "token_classification"};

void check_encoder(const TextEncoderOptions& o) {
  check_options(o.body);
  if (std::find(kTextHeads.begin(), kTextHeads.end(), o.head) == kTextHeads.end())
    fail_unknown("text_encoder", "head", o.head, kTextHeads);
  LEVIN_CHECK(!o.body.causal && o.body.positions == "learned" && o.body.embedding_width() == o.body.hidden_dim,
              "[text_encoder] the body must attend both ways, with learned positions: see encoder_body");
  LEVIN_CHECK(o.token_types >= 0 && o.num_labels > 0 && o.block_size >= 0 && o.random_blocks >= 0,
              "[text_encoder] num_labels must be positive, token_types, block_size and random_blocks 0 or more");
  LEVIN_CHECK(!o.positions_from_ids || (o.pad_token >= 0 && o.pad_token + 1 < o.body.max_positions),
              "[text_encoder] pad_token ", o.pad_token, " must be a row of the ", o.body.max_positions, " positions");
}

Tensor encoder_dropped(const Tensor& x, double p, bool training) {
  return p > 0 && training ? at::dropout(x, p, true) : x;
}

/// What a query of each block adds to the scores of each key, by BigBird's rule outside of training: the first and the
/// last block see all; another sees the first, the last, its neighbours and itself, and the first once more for every
/// random block. [T, T]
Tensor block_scores(int64_t length, int64_t size, int64_t random_blocks, const Tensor& like) {
  const auto last = length / size - 1;
  const auto place = at::arange(length, at::TensorOptions().dtype(at::kLong).device(like.device()));
  const auto block = at::div(place, size, "floor");
  const auto query = block.unsqueeze(1), key = block.unsqueeze(0);
  const auto edge = (query == 0) | (query == last);
  const auto seen = edge | (key == 0) | (key == last) | ((key - query).abs() <= 1);
  const auto hidden = at::full({}, -std::numeric_limits<float>::infinity(), like.options());
  const auto often = at::full({}, std::log(1.0 + static_cast<double>(random_blocks)), like.options());
  const auto nothing = at::zeros({}, like.options());
  return at::where(seen, at::where(edge.logical_not() & (key == 0), often, nothing), hidden);
}

}  // namespace

DecoderOptions encoder_body(DecoderOptions options) {
  options.causal = false;
  options.block = "post";
  options.positions = "learned";
  options.final_norm = false;
  options.embedding_norm = true;
  return options;
}

MaskedTokenHeadImpl::MaskedTokenHeadImpl(const TextEncoderOptions& options)
    : activation(activation_of(options.head_activation)) {
  const auto dim = options.body.hidden_dim;
  dense = register_module("dense", DecoderLinear(dim, dim, true, kEncoderStd));
  norm = register_module("norm", detail::decoder_norm(options.body));
  weight = register_parameter("weight", torch::empty({options.body.vocab_size, dim}));
  if (!options.body.tied_head) torch::nn::init::normal_(weight, 0, kEncoderStd);
  bias = register_parameter("bias", torch::zeros({options.body.vocab_size}));
}

Tensor MaskedTokenHeadImpl::forward(const Tensor& x) {
  return at::linear(std::get<0>(norm(activated(dense(x), activation))), weight, bias);
}

TextEncoderImpl::TextEncoderImpl(const TextEncoderOptions& asked) : options(asked) {
  check_encoder(options);
  const auto& body = options.body;
  const auto dim = body.hidden_dim;
  tokens = register_module("tokens", DecoderEmbedding(body.vocab_size, dim));
  positions = register_module("positions", DecoderEmbedding(body.max_positions, dim));
  if (options.token_types > 0) types = register_module("types", DecoderEmbedding(options.token_types, dim));
  embedding_norm = register_module("embedding_norm", detail::decoder_norm(body));
  blocks = detail::register_blocks(*this, body);
  if (options.pooler) pooler = register_module("pooler", DecoderLinear(dim, dim, true, kEncoderStd));
  if (options.head == "masked_lm") {
    head = register_module("head", MaskedTokenHead(options));
    if (body.tied_head) levin::tie(*this, head->weight, tokens->weight);
  } else if (options.head == "sequence_classification") {
    LEVIN_CHECK(options.classifier != "pooler" || options.pooler, "[text_encoder] the classifier needs the pooler");
    if (options.classifier != "pooler")
      classifier_dense = register_module("classifier_dense", DecoderLinear(dim, dim, true, kEncoderStd));
    classifier = register_module("classifier", DecoderLinear(dim, options.num_labels, true, kEncoderStd));
  } else if (options.head == "token_classification") {
    token_classifier = register_module("token_classifier", DecoderLinear(dim, options.num_labels, true, kEncoderStd));
  }
}

Tensor TextEncoderImpl::hidden_states(const Tensor& given, const Tensor& given_mask, const Tensor& given_types) {
  LEVIN_CHECK(given.dim() == 2 && (given.scalar_type() == at::kLong || given.scalar_type() == at::kInt),
              "[text_encoder] tokens must be integers [B, T], got ", given.scalar_type(), " ", given.sizes());
  check_mask(given_mask, given);
  check_mask(given_types, given);
  LEVIN_CHECK(!given_types.defined() || types, "[text_encoder] the model has no token types");
  const auto& body = options.body;
  const auto length = given.size(1), size = options.block_size;
  const bool by_blocks = size > 0 && length > (5 + 2 * options.random_blocks) * size;
  LEVIN_CHECK(!by_blocks || !is_training(), "[text_encoder] sequences of ", length,
              " tokens attend by blocks, which is not supported in training; set attention_type to \"original_full\"");
  Tensor ids = given, mask = given_mask, segments = given_types;
  const auto rest = by_blocks ? (size - length % size) % size : 0;
  if (rest > 0) {
    if (!mask.defined()) mask = at::ones_like(ids);
    ids = at::constant_pad_nd(ids, {0, rest}, options.pad_token);
    mask = at::constant_pad_nd(mask.to(at::kLong), {0, rest}, 0);
    if (segments.defined()) segments = at::constant_pad_nd(segments, {0, rest}, 0);
  }
  const auto padded = ids.size(1), first = options.positions_from_ids ? options.pad_token + 1 : 0;
  LEVIN_CHECK(first + padded <= body.max_positions, "[text_encoder] ", length, " tokens are more than the ",
              body.max_positions - first, " that there are positions for");
  auto x = tokens(ids);
  if (body.embedding_scale != 1) x = x * body.embedding_scale;
  if (types) x = x + (segments.defined() ? types(segments) : types->weight[0]);
  if (options.positions_from_ids) {
    const auto counted = ids.ne(options.pad_token).to(at::kLong);
    x = x + positions(counted.cumsum(1) * counted + options.pad_token);
  } else {
    x = x + positions(at::arange(padded, ids.options()));
  }
  const auto p = body.embedding_dropout.value_or(body.dropout);
  if (options.dropout_before_norm) x = encoder_dropped(x, p, is_training());
  x = std::get<0>(embedding_norm(x));
  if (!options.dropout_before_norm) x = encoder_dropped(x, p, is_training());
  auto added = attention_masks(body, padded, mask, x).full;
  if (by_blocks) {
    const auto of_blocks = block_scores(padded, size, options.random_blocks, x).unsqueeze(0).unsqueeze(0);
    // BigBird's own penalty, finite: a query that sees padding alone gives a number.
    added =
        mask.defined() ? of_blocks + (mask == 0).unsqueeze(1).unsqueeze(1).to(x.scalar_type()) * -10000.0 : of_blocks;
  }
  for (auto& block : blocks) x = block(x, Tensor(), added);
  return rest > 0 ? x.slice(1, 0, length) : x;
}

Tensor TextEncoderImpl::pooled(const Tensor& hidden) {
  LEVIN_CHECK(pooler, "[text_encoder] the model has no pooler");
  return at::tanh(pooler(hidden.select(1, 0)));
}

Tensor TextEncoderImpl::head_output(const Tensor& hidden) {
  const auto drop = [&](const Tensor& x) { return encoder_dropped(x, options.classifier_dropout, is_training()); };
  if (head) return head(hidden);
  if (token_classifier) return token_classifier(drop(hidden));
  if (!classifier) return hidden;
  if (!classifier_dense) return classifier(drop(pooled(hidden)));
  // RoBERTa and BigBird drop before the layer too, DistilBERT behind it only.
  const auto first = hidden.select(1, 0);
  const auto dense = classifier_dense(options.classifier == "relu" ? first : drop(first));
  return classifier(drop(activated(dense, activation_of(options.classifier))));
}

Tensor TextEncoderImpl::forward(const Tensor& ids, const Tensor& mask, const Tensor& segments) {
  return head_output(hidden_states(ids, mask, segments));
}

Tensor mean_embedding(const Tensor& hidden, const Tensor& mask) {
  if (!mask.defined()) return hidden.mean(1);
  const auto counts = mask.to(hidden.scalar_type()).unsqueeze(2);
  return (hidden * counts).sum(1) / counts.sum(1).clamp_min(1);
}

Tensor first_embedding(const Tensor& hidden) {
  return hidden.select(1, 0);
}

}  // namespace levin::models
