#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>

#include "levin/kernels/quantized/quantized_weight.h"
#include "levin/models/block_attention.h"
#include "levin/models/decoder_cache.h"
#include "levin/models/decoder_loss.h"
#include "levin/models/decoder_options.h"
#include "levin/models/lora/low_rank.h"
#include "levin/nn/checkpointing/returns_last_layer.h"
#include "levin/nn/context/share.h"
#include "levin/nn/experts/experts.h"
#include "levin/nn/residual_norm.h"
#include "levin/nn/tensor/part.h"
#include "levin/nn/unit.h"

namespace levin::models {

namespace detail {
/// The options of a model with some of its heads.
DecoderOptions with_heads(DecoderOptions options, const HeadShare& share);
/// Those of the whole model.
DecoderOptions with_all_heads(DecoderOptions options);
/// How blocks, and the tables of tokens, are split over ranks.
TensorPlan decoder_plan(const DecoderOptions& options);
}  // namespace detail

/// Rows of a table: integers of any shape to [..., D].
struct DecoderEmbeddingImpl : torch::nn::Module {
  DecoderEmbeddingImpl(int64_t rows, int64_t dim);
  Tensor forward(const Tensor& ids);

  Tensor weight;
};
LEVIN_MODULE(DecoderEmbedding);

/// A linear layer that starts from a normal distribution: [..., in] to [..., out].
struct DecoderLinearImpl : torch::nn::Module, TensorParallelPart {
  /// Without `std` the weight is left as it comes.
  DecoderLinearImpl(int64_t in, int64_t out, bool has_bias, std::optional<double> std);
  Tensor forward(const Tensor& x);
  /// Puts a quantized weight in the place of the parameter: buffers "weight", "weight_scales" and "weight_nested".
  void set_quantized(kernels::QuantizedWeight packed);
  int64_t in_features() const { return quantized ? quantized->columns : weight.size(1); }
  int64_t out_features() const { return quantized ? quantized->rows() : weight.size(0); }
  Tensor* row_bias() override { return &bias; }

  /// The weight is undefined where it is quantized.
  Tensor weight, bias;
  std::optional<kernels::QuantizedWeight> quantized;
  /// Changes of low rank that are added to the result (levin/models/lora/lora.h).
  std::vector<LowRank> adapters;
};
LEVIN_MODULE(DecoderLinear);

/// Self attention: [B, T, D] to [B, T, D]. Rows of `qkv` are queries, keys, values, each head by head.
struct DecoderAttentionImpl : torch::nn::Module, TensorParallelPart, ContextParallelPart {
  explicit DecoderAttentionImpl(const DecoderOptions& options, int64_t layer = 0);
  /// Without a mask none is made: the kernel knows whether it is causal. See rotary_angles and attention_masks. Where
  /// `by_blocks` applies, the mask is [B, T], 1 for a token; under a context it is ContextShare::mask. With
  /// `first_only` only the first token asks (all are asked): [B, 1, D]; not under a context.
  Tensor forward(const Tensor& x, const Tensor& rotary = {}, const Tensor& mask = {}, bool first_only = false);
  HeadCounts heads() const override { return {num_heads, kv_heads, head_dim}; }
  void take_heads(const HeadShare& share) override;
  void take_ranks(const TensorRanks& all) override;
  bool draws() const override { return dropout > 0; }
  std::string why_not_spread() const override;
  void take_context(const SharedContext& share) override { context = share; }

  int64_t num_heads, kv_heads, head_dim;
  double dropout, scale, softcap;
  bool causal;
  /// Keys that a query sees, itself included; 0: all before it.
  int64_t window;
  /// Slopes of ALiBi, where it has them: all of how many heads there are, and which this rank has; else 0.
  int64_t alibi_heads = 0, first_head = 0;
  /// The ranks that have the sequence together; null: this one has all of it.
  SharedContext context;
  DecoderLinear qkv = nullptr, out = nullptr;
  /// Of each head of queries and keys; empty without qk_norm.
  nn::ResidualNorm norm_q = nullptr, norm_k = nullptr;
  /// Of BigBird; else null.
  std::shared_ptr<BlockAttention> by_blocks;

  /// The part between the two linear layers, with queries, keys and values apart: what the packed kernel does not do.
  Tensor attend(const Tensor& packed, const Tensor& rotary, const Tensor& mask, bool first_only = false);
  /// Over the keys of all ranks: [B, t, H, D] each.
  Tensor attend_context(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask);

 private:
  /// A norm over all heads together, where a rank has those of `part`: x [B, T, count * D]. The part is on `copies`
  /// ranks.
  Tensor wide_normed(nn::ResidualNorm& norm, const Tensor& x, Share part, int64_t copies) const;

  bool is_plain_, wide_norm_ = false;
  int64_t layer_;
  /// The heads of this rank, and the ranks that have the others; null: all are here.
  HeadShare share_;
  TensorRanks ranks_;
  /// How many ranks have the keys that this one has.
  int64_t key_copies_ = 1;
};
LEVIN_MODULE(DecoderAttention);

struct DecoderMlpImpl : torch::nn::Module {
  enum class Activation { kGelu, kGeluTanh, kQuickGelu, kRelu, kSilu, kTanh };
  /// `width` 0: that of the options.
  explicit DecoderMlpImpl(const DecoderOptions& options, int64_t width = 0);
  Tensor forward(const Tensor& x);
  /// activation(gate(x)) * up(x).
  Tensor gated(const Tensor& x);

  Activation activation;
  /// `gate` is empty for an MLP that is not gated.
  DecoderLinear gate = nullptr, up = nullptr, down = nullptr;
};
LEVIN_MODULE(DecoderMlp);

/// The activation of that name, as DecoderOptions has it ("_gated" does not count).
DecoderMlpImpl::Activation activation_of(const std::string& name);
Tensor activated(const Tensor& x, DecoderMlpImpl::Activation activation);

/// One layer: what is sharded, checkpointed and streamed as one. [B, T, D] to the same; `rotary` and `mask` are made
/// once for all layers. With `first_only` the result is the first token of it, [B, 1, D], without the work for the
/// others.
struct DecoderBlockImpl : torch::nn::Module, nn::ReturnsLastLayer {
  enum class Order { kPre, kPost, kParallel, kResidual, kSandwich };
  explicit DecoderBlockImpl(const DecoderOptions& options, int64_t layer = 0);
  Tensor forward(const Tensor& x, const Tensor& rotary = {}, const Tensor& mask = {}, bool first_only = false);
  /// The same without the last sum, and with that of the block before; a block other than "pre" leaves no sum open.
  nn::OpenStream open(nn::OpenStream stream, const Tensor& rotary, const Tensor& mask, bool first_only);

  /// Of what the MLP gives, and of what attention gives.
  double dropout, attention_dropout;
  Order order;
  nn::ResidualNorm norm_1 = nullptr, norm_2 = nullptr;
  /// Behind attention and MLP in a "sandwich"; else empty.
  nn::ResidualNorm norm_1_after = nullptr, norm_2_after = nullptr;
  DecoderAttention attention = nullptr;
  /// Empty where the layer has experts.
  DecoderMlp mlp = nullptr;
  nn::Experts experts = nullptr;
  /// An MLP beside the experts and its gate; else empty.
  DecoderMlp shared = nullptr;
  DecoderLinear shared_gate = nullptr;

 private:
  /// The MLP, or the experts.
  Tensor fed(const Tensor& x);
  /// One token of each of a few rows, with activations, gates and sums inside the products (kernels::row_linear);
  /// nothing where that is not possible.
  std::optional<nn::OpenStream> decoded(const nn::OpenStream& stream);
  /// A block other than "pre".
  Tensor closed(const Tensor& x, const Tensor& rotary, const Tensor& mask, bool first_only);

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Tensor())}, {2, torch::nn::AnyValue(Tensor())},
                           {3, torch::nn::AnyValue(false)})  // for torch::nn::Sequential
};
LEVIN_MODULE(DecoderBlock);

/// Hidden states [B, T, D] to logits [B, T, V], or with targets [B, T] straight to the loss
/// (levin/models/decoder_loss.h).
struct DecoderHeadImpl : DecoderLinearImpl {
  explicit DecoderHeadImpl(const DecoderOptions& options);
  Tensor forward(const Tensor& x, const Tensor& targets = {});
  void take_vocab(const std::shared_ptr<const VocabShare>& share) override { vocab = share; }

  int64_t loss_rows;
  double softcap;
  /// The rows that the weight has; null: all.
  std::shared_ptr<const VocabShare> vocab;

 private:
  Tensor forward_part(const Tensor& x, const Tensor& targets);
};
LEVIN_MODULE(DecoderHead);

/// A decoder-only transformer.
///
///     auto model = levin::models::gpt2();
///     auto logits = model(tokens);                                          // [B, T] to [B, T, V]
///     auto loss = model(tokens, levin::models::next_tokens(tokens));       // without keeping the logits
///     auto padded = model(tokens, Tensor(), mask);                          // rows of unequal length
struct DecoderImpl : torch::nn::Module, TensorParallelPart, ContextParallelPart {
  explicit DecoderImpl(const DecoderOptions& options = {});
  /// Tokens int64 [B, T] to logits [B, T, V]; with targets [B, T] to the mean cross entropy of those that are not -100,
  /// in training with the losses of routers that the options ask for.
  /// mask [B, T]: 1 for a token, 0 for padding, on the left or on the right. Positions count tokens only, so that a row
  /// has the logits that it has alone. Several texts in one row are numbered 1, 2, ... in the mask: a token sees those
  /// of its own number, and positions count from its beginning.
  Tensor forward(const Tensor& tokens, const Tensor& targets = {}, const Tensor& mask = {});
  /// The same up to the head: [B, T, D].
  Tensor hidden_states(const Tensor& tokens, const Tensor& mask = {});
  /// The same of tokens that follow those of a cache, which takes them in.
  Tensor hidden_states(const Tensor& tokens, DecoderCache& cache, const CachePass& pass);
  /// Of a classifier (num_labels): logits [B, labels] of the last token of each row, which forward gives too. It is the
  /// last one that is not pad_token, without a pad_token the last of the mask.
  Tensor class_logits(const Tensor& tokens, const Tensor& mask = {});
  TensorPlan tensor_plan() const override;
  void take_heads(const HeadShare& share) override { options = detail::with_heads(options, share); }
  void take_ranks(const TensorRanks& all) override { ranks = all; }
  bool takes_sequence() const override { return true; }
  bool sees_both_ways() const override { return !options.causal; }
  void take_context(const SharedContext& share) override;

  /// Where the model is split over ranks, its heads are those of this one.
  DecoderOptions options;
  /// The ranks that have the model together; null: this one has all of it.
  TensorRanks ranks;
  /// The ranks that have a sequence together; null: this one has all of it.
  SharedContext context;
  DecoderEmbedding tokens = nullptr, positions = nullptr;
  /// Of BLOOM, and of OPT-350m; else empty.
  nn::ResidualNorm embedding_norm = nullptr;
  DecoderLinear project_in = nullptr, project_out = nullptr;
  std::vector<DecoderBlock> blocks;
  nn::ResidualNorm norm = nullptr;
  /// One of the two; the other is empty.
  DecoderHead head = nullptr;
  DecoderLinear score = nullptr;

 private:
  Tensor embedded(const Tensor& ids);
  /// embedded, with learned positions where the model has them; of the tokens of this rank.
  Tensor placed(const Tensor& ids, const Tensor& mask);
  /// hidden_states of this rank's tokens: [B, t, D].
  Tensor own_states(const Tensor& ids, const Tensor& mask);
  /// The mean cross entropy, over the ranks that share a text.
  Tensor token_loss(const Tensor& ids, const Tensor& targets, const Tensor& mask);
  /// The same with the losses of routers.
  Tensor loss_of(const Tensor& ids, const Tensor& targets, const Tensor& mask);
  /// From the embedding to the head.
  Tensor through_blocks(Tensor x, const Tensor& rotary, const AttentionMasks& masks);
};
LEVIN_MODULE(Decoder);

namespace detail {
/// The norm of a block, and blocks 0 to num_layers - 1 as children of "blocks" of `owner`.
nn::ResidualNorm decoder_norm(const DecoderOptions& options);
std::vector<DecoderBlock> register_blocks(torch::nn::Module& owner, const DecoderOptions& options);
}  // namespace detail

/// A decoder of any options; sizes with a name are in decoder_sizes.h.
Decoder decoder(const DecoderOptions& options);

}  // namespace levin::models
