// Self attention of a decoder's block: on one rank, with some of the heads, and over sequences that ranks have
// together.
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>

#include "levin/core/error.h"
#include "levin/kernels/attention/attention.h"
#include "levin/models/decoder.h"
#include "levin/models/decoder_parts.h"
#include "levin/models/decoder_positions.h"
#include "levin/nn/context/attention.h"
#include "levin/nn/tensor/functions.h"

namespace levin::models {

using detail::capped;
using detail::dropped;
using detail::kInitStd;

namespace {

/// x [B, T, H, D]: the first dimensions of each head turned by angles [2, (B,) T, R / 2].
Tensor turned(const Tensor& x, const Tensor& angles) {
  const auto width = 2 * angles.size(-1);
  const auto by = angles.to(x.scalar_type()).unsqueeze(-2);
  const auto halves = x.slice(-1, 0, width).chunk(2, -1);
  std::vector<Tensor> parts{halves[0] * by[0] - halves[1] * by[1], halves[1] * by[0] + halves[0] * by[1]};
  if (width < x.size(-1)) parts.push_back(x.slice(-1, width));
  return at::cat(parts, -1);
}

}  // namespace

DecoderAttentionImpl::DecoderAttentionImpl(const DecoderOptions& options, int64_t layer)
    : num_heads(options.num_heads),
      kv_heads(options.key_heads()),
      head_dim(options.head_width()),
      dropout(options.attention_dropout),
      scale(options.attention_scale),
      softcap(options.attention_softcap),
      causal(options.causal),
      window(options.windowed_layers.empty() || options.windowed_layers[static_cast<size_t>(layer)] ? options.window
                                                                                                    : 0),
      alibi_heads(options.positions == "alibi" ? options.num_heads : 0),
      layer_(layer) {
  const auto dim = options.hidden_dim, wide = num_heads * head_dim;
  is_plain_ = kv_heads == num_heads && scale == 0 && softcap == 0 && !options.qk_norm && !options.scale_by_layer;
  if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(head_dim));
  if (options.scale_by_layer) scale /= static_cast<double>(layer + 1);
  qkv = register_module(
      "qkv", DecoderLinear(dim, wide + 2 * kv_heads * head_dim, options.qkv_bias.value_or(options.bias), kInitStd));
  out = register_module(
      "out", DecoderLinear(wide, dim, options.out_bias.value_or(options.bias), detail::residual_std(options)));
  if (!options.qk_norm) return;
  nn::ResidualNormOptions norm{
      .size = head_dim, .eps = options.norm_eps, .rms = true, .bias = false, .unit_offset = options.norm_unit_offset};
  wide_norm_ = options.qk_norm_wide;
  if (wide_norm_) norm.size = wide;
  norm_q = register_module("norm_q", nn::ResidualNorm(norm));
  if (wide_norm_) norm.size = kv_heads * head_dim;
  norm_k = register_module("norm_k", nn::ResidualNorm(norm));
}

void DecoderAttentionImpl::take_heads(const HeadShare& share) {
  if (by_blocks) by_blocks->take_heads(share.heads);
  num_heads = share.heads.count;
  kv_heads = share.kv_heads.count;
  first_head = share.heads.first;
  share_ = share;
}

void DecoderAttentionImpl::take_ranks(const TensorRanks& all) {
  ranks_ = all;
  key_copies_ = 0;
  for (int rank = 0; rank < all->size(); ++rank)
    key_copies_ += HeadShare::of(share_.all, all->size(), rank, "attention").kv_heads.first == share_.kv_heads.first;
}

Tensor DecoderAttentionImpl::wide_normed(nn::ResidualNorm& norm, const Tensor& x, Share part, int64_t copies) const {
  if (!ranks_ || ranks_->size() == 1) return std::get<0>(norm(x));
  const auto wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
  // Of each token one number is summed over the ranks, and its gradient too: every rank divides by it.
  const auto own = wide.square().sum(-1, /*keepdim=*/true) / static_cast<double>(copies);
  const auto all = nn::copied_to_ranks(nn::summed_over_ranks(own, ranks_), ranks_);
  const auto normed = wide * (all / static_cast<double>(norm->options.size) + norm->options.eps).rsqrt();
  // Every rank has the full weight; gradients of its parts are summed with zeros.
  auto weight = norm->weight.narrow(0, part.first * head_dim, part.count * head_dim).to(wide.scalar_type());
  if (norm->options.unit_offset) weight = weight + 1;
  return (normed * weight).to(x.scalar_type());
}

Tensor DecoderAttentionImpl::forward(const Tensor& x, const Tensor& rotary, const Tensor& mask, bool first_only) {
  if (by_blocks && by_blocks->applies(x.size(1))) {
    const auto packed = qkv(x).view({x.size(0), x.size(1), 3, num_heads, head_dim});
    const auto mixed = (*by_blocks)(packed, mask, is_training());
    return out(first_only ? detail::first_token(mixed) : mixed);
  }
  const bool whole = !rotary.defined() || (rotary.dim() == 3 && 2 * rotary.size(2) == head_dim);
  if (!is_plain_ || mask.defined() || !whole || context || first_only || detail::current_cache_step())
    return out(attend(qkv(x), rotary, mask, first_only));
  return out(kernels::attention(qkv(x).view({x.size(0), x.size(1), 3, num_heads, head_dim}),
                                {.causal = causal, .dropout = is_training() ? dropout : 0.0, .rotary = rotary}));
}

Tensor DecoderAttentionImpl::attend(const Tensor& packed, const Tensor& rotary, const Tensor& mask, bool first_only) {
  const auto b = packed.size(0), t = packed.size(1), wide = num_heads * head_dim, narrow = kv_heads * head_dim;
  auto parts = packed.split_with_sizes({wide, narrow, narrow}, -1);
  if (wide_norm_) {
    parts[0] = wide_normed(norm_q, parts[0], share_.heads, 1);
    parts[1] = wide_normed(norm_k, parts[1], share_.kv_heads, key_copies_);
  }
  auto q = parts[0].view({b, t, num_heads, head_dim});
  auto k = parts[1].view({b, t, kv_heads, head_dim});
  auto v = parts[2].view({b, t, kv_heads, head_dim});
  if (norm_q && !wide_norm_) q = std::get<0>(norm_q(q)), k = std::get<0>(norm_k(k));
  if (rotary.defined()) q = turned(q, rotary), k = turned(k, rotary);
  if (const auto* step = detail::current_cache_step()) {
    if (step->fused) return step->decode(layer_, q, k, v, scale, softcap);
    step->write(layer_, k, v);
    if (step->pass->seen > 0)
      return detail::cached_attention(q, step->keys(layer_, q), step->values(layer_, q), mask, scale, softcap);
  } else if (context) {
    return attend_context(q, k, v, mask);
  }
  q = q.transpose(1, 2), k = k.transpose(1, 2), v = v.transpose(1, 2);  // [B, H, T, D]
  const auto p = is_training() ? dropout : 0.0;
  auto added = mask;
  if (first_only) {
    q = q.narrow(2, 0, 1);
    if (added.defined()) added = added.narrow(2, 0, 1);
  }
  // Under autocast: a lowest number of float32 would become infinite.
  if (added.defined() && added.is_floating_point() && added.scalar_type() != q.scalar_type())
    added = added.clamp_min(lowest_number(q.scalar_type())).to(q.scalar_type());
  if (softcap == 0) {
    const auto mixed = at::scaled_dot_product_attention(
        q, k, v, added.defined() ? std::optional<Tensor>(added) : std::nullopt, p, causal && !added.defined(), scale,
        /*enable_gqa=*/kv_heads != num_heads);
    return mixed.transpose(1, 2).reshape({b, q.size(2), wide});
  }
  const auto groups = num_heads / kv_heads;
  if (groups > 1) k = k.repeat_interleave(groups, 1), v = v.repeat_interleave(groups, 1);
  auto scores = capped(at::matmul(q, k.transpose(-1, -2)) * scale, softcap);
  const auto lowest = -std::numeric_limits<float>::infinity();
  if (!added.defined() && causal)
    scores = scores + at::full({q.size(2), t}, lowest, scores.options()).triu_(1);
  else if (added.defined())
    scores = added.scalar_type() == at::kBool ? at::where(added, scores, lowest) : scores + added;
  const auto weights = at::softmax(scores, -1, at::kFloat).to(v.scalar_type());
  return at::matmul(dropped(weights, p, is_training()), v).transpose(1, 2).reshape({b, q.size(2), wide});
}

std::string DecoderAttentionImpl::why_not_spread() const {
  return by_blocks ? "attends by blocks of tokens (BigBird), which cannot be spread over ranks" : "";
}

Tensor DecoderAttentionImpl::attend_context(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
  LEVIN_CHECK(dropout == 0 || !is_training(), "[context_parallel] attention_dropout ", dropout,
              " is not possible where keys are on several ranks; set it to 0 (dropout of activations may stay)");
  nn::ContextAttentionOptions options{.causal = causal, .scale = scale, .window = window, .softcap = softcap};
  if (mask.size(0) > 0) options.texts = mask;
  if (alibi_heads > 0) {
    options.slopes = alibi_slopes(alibi_heads, q.device()).narrow(0, first_head, num_heads);
    if (options.texts.defined()) options.places = token_positions(mask);
  }
  return nn::context_attention(q, k, v, mask.size(1), options, context);
}

}  // namespace levin::models
