// What a decoder does where ranks have its sequences together, and the loss of its tokens.
#include "levin/core/error.h"
#include "levin/models/decoder.h"
#include "levin/models/decoder_positions.h"
#include "levin/nn/context/attention.h"
#include "levin/nn/experts/router_loss.h"

namespace levin::models {

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

void DecoderImpl::take_context(const SharedContext& share) {
  context = share;
  // The load of experts is that of the whole sequence.
  for (auto& block : blocks)
    if (block->experts && !block->experts->batch_ranks) block->experts->batch_ranks = share->shared_ranks();
}

Tensor DecoderImpl::token_loss(const Tensor& ids, const Tensor& targets, const Tensor& mask) {
  const auto states = own_states(ids, mask);
  if (!context) return head(states, targets);
  const auto own = context->take(targets, 1);
  return context->mean(head(states, own), own.ne(kIgnoredToken).sum());
}

Tensor DecoderImpl::loss_of(const Tensor& ids, const Tensor& targets, const Tensor& mask) {
  if (!is_training() || options.experts.count == 0 || (options.balance_loss == 0 && options.router_z_loss == 0))
    return token_loss(ids, targets, mask);
  const nn::RouterRecords routers;
  auto loss = token_loss(ids, targets, mask);
  int64_t layers = 0;
  for (int64_t i = 0; i < options.num_layers; ++i) layers += options.has_experts(i) ? 1 : 0;
  LEVIN_CHECK(static_cast<int64_t>(routers.records().size()) == layers, "[decoder] balance_loss and router_z_loss are ",
              "of all ", layers, " layers with experts, and ", routers.records().size(),
              " ran here; where layers are on several ranks (pipeline) set both to 0");
  if (layers == 0) return loss;
  const auto routed = context && mask.defined() ? context->take(mask, 1) : mask;
  if (options.balance_loss > 0) loss = loss + options.balance_loss * nn::balance_loss(routers.records(), routed);
  if (options.router_z_loss > 0) loss = loss + options.router_z_loss * nn::router_z_loss(routers.records(), routed);
  return loss;
}

}  // namespace levin::models
