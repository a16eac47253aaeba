#include "levin/models/text_encoder.h"

#include <algorithm>
#include <array>
#include <memory>

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/models/decoder_parts.h"
#include "levin/models/decoder_positions.h"
#include "levin/nn/tensor/functions.h"
#include "levin/nn/tensor/split.h"
#include "levin/nn/tie.h"

namespace levin::models {
namespace {

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
  dense = register_module("dense", DecoderLinear(dim, dim, true, detail::kInitStd));
  norm = register_module("norm", detail::decoder_norm(options.body));
  weight = register_parameter("weight", torch::empty({options.body.vocab_size, dim}));
  if (!options.body.tied_head) torch::nn::init::normal_(weight, 0, detail::kInitStd);
  bias = register_parameter("bias", torch::zeros({options.body.vocab_size}));
}

Tensor MaskedTokenHeadImpl::forward(const Tensor& x) {
  const auto states = std::get<0>(norm(activated(dense(x), activation)));
  if (!vocab) return at::linear(states, weight, bias);
  const auto logits = at::linear(nn::copied_to_ranks(states, vocab->ranks), weight, bias);
  return nn::gathered_from_ranks(logits, -1, vocab->counts(), vocab->ranks);
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
  for (size_t i = 0; i < blocks.size() && options.block_size > 0; ++i)
    blocks[i]->attention->by_blocks =
        std::make_shared<BlockAttention>(BlockAttentionOptions{.block_size = options.block_size,
                                                               .random_blocks = options.random_blocks,
                                                               .num_heads = body.num_heads,
                                                               .max_positions = body.max_positions,
                                                               .layer = static_cast<int64_t>(i)});
  if (options.pooler) pooler = register_module("pooler", DecoderLinear(dim, dim, true, detail::kInitStd));
  if (options.head == "masked_lm") {
    head = register_module("head", MaskedTokenHead(options));
    if (body.tied_head) levin::tie(*this, head->weight, tokens->weight);
  } else if (options.head == "sequence_classification") {
    LEVIN_CHECK(options.classifier != "pooler" || options.pooler, "[text_encoder] the classifier needs the pooler");
    if (options.classifier != "pooler")
      classifier_dense = register_module("classifier_dense", DecoderLinear(dim, dim, true, detail::kInitStd));
    classifier = register_module("classifier", DecoderLinear(dim, options.num_labels, true, detail::kInitStd));
  } else if (options.head == "token_classification") {
    token_classifier =
        register_module("token_classifier", DecoderLinear(dim, options.num_labels, true, detail::kInitStd));
  }
}

Tensor TextEncoderImpl::hidden_states(const Tensor& ids, const Tensor& mask, const Tensor& segments) {
  const auto states = own_states(ids, mask, segments);
  return context ? context->gathered(states, 1, ids.size(1)) : states;
}

Tensor TextEncoderImpl::first_states(const Tensor& ids, const Tensor& mask, const Tensor& segments) {
  // Where ranks have parts of a text, one has that token, and the others wait for it. Experts look at all tokens.
  const auto& last = blocks.back();
  const bool first_only = !context && !has_part_of_sequence(*last) && last->mlp;
  return first_only ? own_states(ids, mask, segments, /*first_only=*/true)
                    : detail::first_token(hidden_states(ids, mask, segments));
}

Tensor TextEncoderImpl::own_states(const Tensor& given, const Tensor& given_mask, const Tensor& given_types,
                                   bool first_only) {
  LEVIN_CHECK(given.dim() == 2 && (given.scalar_type() == at::kLong || given.scalar_type() == at::kInt),
              "[text_encoder] tokens must be integers [B, T], got ", given.scalar_type(), " ", given.sizes());
  check_mask(given_mask, given);
  check_mask(given_types, given);
  LEVIN_CHECK(!given_types.defined() || types, "[text_encoder] the model has no token types");
  const auto& body = options.body;
  const auto length = given.size(1), size = options.block_size;
  const auto& by_blocks = blocks[0]->attention->by_blocks;
  const bool blocked = by_blocks && by_blocks->applies(length);
  Tensor ids = given, mask = given_mask, segments = given_types;
  const auto rest = blocked ? (size - length % size) % size : 0;
  if (rest > 0) {
    if (!mask.defined()) mask = at::ones_like(ids);
    ids = at::constant_pad_nd(ids, {0, rest}, options.pad_token);
    mask = at::constant_pad_nd(mask.to(at::kLong), {0, rest}, 0);
    if (segments.defined()) segments = at::constant_pad_nd(segments, {0, rest}, 0);
  }
  const auto padded = ids.size(1), first = options.positions_from_ids ? options.pad_token + 1 : 0;
  LEVIN_CHECK(first + padded <= body.max_positions, "[text_encoder] ", length, " tokens are more than the ",
              body.max_positions - first, " that there are positions for");
  if (context) context->check_tokens(ids);
  const auto own = [&](const Tensor& whole) { return context ? context->take(whole, -1) : whole; };
  auto x = tokens(own(ids));
  if (body.embedding_scale != 1) x = x * body.embedding_scale;
  if (types) x = x + (segments.defined() ? types(own(segments)) : types->weight[0]);
  if (options.positions_from_ids) {
    const auto counted = ids.ne(options.pad_token).to(at::kLong);
    x = x + positions(own(counted.cumsum(1) * counted + options.pad_token));
  } else {
    x = x + positions(own(at::arange(padded, ids.options())));
  }
  const auto p = body.embedding_dropout.value_or(body.dropout);
  if (options.dropout_before_norm) x = detail::dropped(x, p, is_training());
  x = std::get<0>(embedding_norm(x));
  if (!options.dropout_before_norm) x = detail::dropped(x, p, is_training());
  const auto added = context   ? ContextShare::mask(mask, padded)
                     : blocked ? mask
                               : attention_masks(body, padded, mask, x).full;
  for (auto& block : blocks) x = block(x, Tensor(), added, first_only && &block == &blocks.back());
  return rest > 0 ? x.slice(1, 0, length) : x;
}

Tensor TextEncoderImpl::pooled(const Tensor& hidden) {
  LEVIN_CHECK(pooler, "[text_encoder] the model has no pooler");
  return at::tanh(pooler(hidden.select(1, 0)));
}

Tensor TextEncoderImpl::head_output(const Tensor& hidden) {
  const auto p = token_classifier && options.drops_tokens_as_body ? options.body.dropout : options.classifier_dropout;
  const auto drop = [&](const Tensor& x) { return detail::dropped(x, p, is_training()); };
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
  if (classifier) return head_output(first_states(ids, mask, segments));
  if (!context || !(head || token_classifier)) return head_output(hidden_states(ids, mask, segments));
  return context->gathered(head_output(own_states(ids, mask, segments)), 1, ids.size(1));
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
