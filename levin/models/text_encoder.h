#pragma once

#include <string_view>
#include <vector>

#include "levin/models/decoder.h"
#include "levin/models/text_encoder_options.h"

namespace levin::models {

/// Hidden states [B, T, D] to logits [B, T, V] of the tokens that stand there: a layer, a norm, and the table of
/// tokens.
struct MaskedTokenHeadImpl : torch::nn::Module, TensorParallelPart {
  explicit MaskedTokenHeadImpl(const TextEncoderOptions& options);
  Tensor forward(const Tensor& x);
  void take_vocab(const std::shared_ptr<const VocabShare>& share) override { vocab = share; }

  DecoderMlpImpl::Activation activation;
  DecoderLinear dense = nullptr;
  nn::ResidualNorm norm = nullptr;
  Tensor weight, bias;
  /// The rows that weight and bias have; null: all.
  std::shared_ptr<const VocabShare> vocab;
};
LEVIN_MODULE(MaskedTokenHead);

/// A transformer that sees the whole text at once, made of the blocks of Decoder, with the head of its options.
///
///     auto logits = encoder(ids, mask);                       // what the head gives
///     auto vectors = levin::models::mean_embedding(encoder->hidden_states(ids, mask), mask);
struct TextEncoderImpl : torch::nn::Module, TensorParallelPart, ContextParallelPart {
  explicit TextEncoderImpl(const TextEncoderOptions& options);
  /// ids int64 [B, T] to [B, T, V] of masked_lm, [B, labels] of sequence_classification, [B, T, labels] of
  /// token_classification, or the hidden states [B, T, D] without a head. mask [B, T]: 1 for a token, 0 for padding;
  /// types [B, T]: the segment of each token, 0 where undefined.
  Tensor forward(const Tensor& ids, const Tensor& mask = {}, const Tensor& types = {});
  Tensor hidden_states(const Tensor& ids, const Tensor& mask = {}, const Tensor& types = {});
  /// The hidden state of the first token of each text, [B, 1, D]: what sequences are classified by. Nobody looks at the
  /// other tokens of the last block, so it need not compute them: numbers and gradients are the same.
  Tensor first_states(const Tensor& ids, const Tensor& mask = {}, const Tensor& types = {});
  /// What the head gives for hidden states. That of sequence_classification looks at the first token alone.
  Tensor head_output(const Tensor& hidden);
  /// The first token through the pooler: [B, D].
  Tensor pooled(const Tensor& hidden);
  TensorPlan tensor_plan() const override { return detail::decoder_plan(options.body); }
  void take_heads(const HeadShare& share) override { options.body = detail::with_heads(options.body, share); }
  bool takes_sequence() const override { return true; }
  bool sees_both_ways() const override { return true; }
  void take_context(const SharedContext& share) override { context = share; }

  TextEncoderOptions options;
  /// The ranks that have a sequence together; null: this one has all of it.
  SharedContext context;
  DecoderEmbedding tokens = nullptr, positions = nullptr, types = nullptr;
  nn::ResidualNorm embedding_norm = nullptr;
  std::vector<DecoderBlock> blocks;
  DecoderLinear pooler = nullptr;
  /// Of the head that the options name; the others are empty.
  MaskedTokenHead head = nullptr;
  DecoderLinear classifier_dense = nullptr, classifier = nullptr, token_classifier = nullptr;

 private:
  /// hidden_states of this rank's tokens, or of the first one.
  Tensor own_states(const Tensor& ids, const Tensor& mask, const Tensor& types, bool first_only = false);
};
LEVIN_MODULE(TextEncoder);

/// The mean of the hidden states [B, T, D] of the tokens of each row: [B, D].
Tensor mean_embedding(const Tensor& hidden, const Tensor& mask = {});
/// The hidden state of the first token: [B, D].
Tensor first_embedding(const Tensor& hidden);

}  // namespace levin::models
