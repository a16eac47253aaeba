// What a decoder does where ranks have its sequences together.
#include "levin/core/error.h"
#include "levin/models/decoder.h"
#include "levin/models/decoder_positions.h"
#include "levin/nn/context/attention.h"

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

}  // namespace levin::models
