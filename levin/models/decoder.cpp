#include "levin/models/decoder.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/kernels/activation.h"
#include "levin/kernels/decode/row_linear.h"
#include "levin/kernels/embedding/embedding.h"
#include "levin/kernels/linear/linear.h"
#include "levin/models/decoder_parts.h"
#include "levin/models/decoder_positions.h"
#include "levin/nn/fp8_mlp.h"
#include "levin/nn/functional.h"
#include "levin/nn/module_access.h"
#include "levin/nn/tensor/functions.h"
#include "levin/nn/tie.h"

namespace levin::models {

using detail::capped;
using detail::dropped;
using detail::first_token;
using detail::kInitStd;
using detail::residual_std;

namespace {

/// Rows of logits at once where a rank has some of their columns.
constexpr int64_t kRowsOfLoss = 1024;

/// A name in the tree of parameters, nothing else.
struct DecoderGroupImpl : torch::nn::Module {};

size_t word_index(const char* what, const std::string& word, std::span<const std::string> known) {
  const auto found = std::find(known.begin(), known.end(), word);
  if (found == known.end()) fail_unknown("decoder", what, word, known);
  return static_cast<size_t>(found - known.begin());
}

const std::array<std::string, 2> kNorms{"layer", "rms"};
const std::array<std::string, 4> kPositions{"learned", "rotary", "alibi", "none"};
const std::array<std::string, 5> kScalings{"none", "linear", "dynamic", "yarn", "llama3"};
const std::array<std::string, 5> kOrders{"pre", "post", "parallel", "residual", "sandwich"};  // as Order
const std::array<std::string, 6> kActivations{"gelu", "gelu_tanh", "quick_gelu",
                                              "relu", "silu",      "tanh"};  // as Activation

/// Of an activation with or without "_gated".
size_t activation_index(const std::string& name) {
  constexpr std::string_view kGated = "_gated";
  return word_index("activation", name.ends_with(kGated) ? name.substr(0, name.size() - kGated.size()) : name,
                    kActivations);
}

void check_rotary(const DecoderOptions& o) {
  const auto& scaling = o.rotary_scaling;
  const auto rotated = o.rotary_dim > 0 ? o.rotary_dim : o.head_width();
  word_index("rotary scaling", scaling.type, kScalings);
  LEVIN_CHECK(o.rotary_dim > 0 || rotated % 2 == 0, "[decoder] rotary positions need heads of even width, not ",
              rotated);
  LEVIN_CHECK(rotated + rotated % 2 <= o.head_width(), "[decoder] rotary_dim ", o.rotary_dim,
              " is more than the width of a head, ", o.head_width());
  LEVIN_CHECK(std::isfinite(o.rotary_base) && o.rotary_base > 0, "[decoder] rotary_base ", o.rotary_base,
              " must be positive");
  if (scaling.type == "none") return;
  LEVIN_CHECK(std::isfinite(scaling.factor) && scaling.factor >= 1, "[decoder] the factor ", scaling.factor,
              " of rotary scaling must be 1 or more");
  LEVIN_CHECK(scaling.original_positions >= 0, "[decoder] original_positions must not be negative");
  LEVIN_CHECK(scaling.type != "dynamic" || rotated > 2,
              "[decoder] dynamic rotary scaling needs more than 2 dimensions");
  LEVIN_CHECK(
      scaling.type != "llama3" || (scaling.low_freq_factor > 0 && scaling.high_freq_factor > scaling.low_freq_factor),
      "[decoder] rotary scaling llama3 needs 0 < low_freq_factor < high_freq_factor, got ", scaling.low_freq_factor,
      " and ", scaling.high_freq_factor);
  LEVIN_CHECK(
      scaling.type != "yarn" || (scaling.beta_slow > 0 && scaling.beta_fast >= scaling.beta_slow && o.rotary_base != 1),
      "[decoder] rotary scaling yarn needs 0 < beta_slow <= beta_fast, got ", scaling.beta_slow, " and ",
      scaling.beta_fast);
}

}  // namespace

void check_options(const DecoderOptions& o) {
  LEVIN_CHECK(o.vocab_size > 0 && o.max_positions > 0 && o.num_layers > 0 && o.hidden_dim > 0 && o.mlp_dim >= 0,
              "[decoder] vocab_size, max_positions, num_layers and hidden_dim must be positive, mlp_dim 0 or more");
  LEVIN_CHECK(o.num_heads > 0 && o.head_dim >= 0 && (o.head_dim > 0 || o.hidden_dim % o.num_heads == 0),
              "[decoder] hidden_dim ", o.hidden_dim, " is not a multiple of num_heads ", o.num_heads);
  LEVIN_CHECK(o.kv_heads >= 0 && o.num_heads % o.key_heads() == 0, "[decoder] num_heads ", o.num_heads,
              " is not a multiple of kv_heads ", o.kv_heads);
  LEVIN_CHECK(o.loss_rows >= -1, "[decoder] loss_rows ", o.loss_rows, " must be -1 (chosen by size), 0 (all) or more");
  LEVIN_CHECK(o.num_labels >= 0 && o.pad_token >= -1,
              "[decoder] num_labels must not be negative, pad_token must be a token or -1");
  LEVIN_CHECK(o.embedding_dim >= 0 && o.position_offset >= 0 && o.rotary_dim >= 0 && o.window >= 0,
              "[decoder] embedding_dim, position_offset, rotary_dim and window must not be negative");
  LEVIN_CHECK(std::isfinite(o.norm_eps) && o.norm_eps >= 0, "[decoder] norm_eps ", o.norm_eps,
              " must be 0 or more, and finite");
  for (const auto value : {o.attention_scale, o.attention_softcap, o.logit_softcap})
    LEVIN_CHECK(std::isfinite(value) && value >= 0,
                "[decoder] attention_scale, attention_softcap and logit_softcap must be 0 or more, and finite");
  LEVIN_CHECK(o.windowed_layers.empty() || static_cast<int64_t>(o.windowed_layers.size()) == o.num_layers,
              "[decoder] windowed_layers names ", o.windowed_layers.size(), " layers, there are ", o.num_layers);
  const bool rms = word_index("norm", o.norm, kNorms) == 1;
  LEVIN_CHECK(!o.norm_unit_offset || rms, "[decoder] norm_unit_offset is of norm \"rms\"");
  activation_index(o.activation);
  word_index("positions", o.positions, kPositions);
  word_index("block", o.block, kOrders);
  LEVIN_CHECK(o.causal || (o.positions != "alibi" && o.window == 0),
              "[decoder] positions \"alibi\" and a window need causal attention");
  if (o.positions == "rotary") check_rotary(o);
  if (o.experts.count != 0) experts_of(o);
}

namespace detail {

nn::ResidualNorm decoder_norm(const DecoderOptions& options) {
  const bool rms = word_index("norm", options.norm, kNorms) == 1;
  return nn::ResidualNorm(nn::ResidualNormOptions{.size = options.hidden_dim,
                                                  .eps = options.norm_eps,
                                                  .rms = rms,
                                                  .bias = options.norm_bias.value_or(options.bias) && !rms,
                                                  .affine = options.norm_affine,
                                                  .unit_offset = options.norm_unit_offset});
}

std::vector<DecoderBlock> register_blocks(torch::nn::Module& owner, const DecoderOptions& options) {
  std::vector<DecoderBlock> blocks;
  auto layers = owner.register_module("blocks", std::make_shared<DecoderGroupImpl>());
  for (int64_t i = 0; i < options.num_layers; ++i) {
    blocks.push_back(DecoderBlock(options, i));
    layers->register_module(std::to_string(i), blocks.back());
  }
  return blocks;
}

}  // namespace detail

DecoderOptions detail::with_heads(DecoderOptions options, const HeadShare& share) {
  options.num_heads = share.heads.count;
  options.kv_heads = share.kv_heads.count;
  options.head_dim = share.all.width;
  options.all_heads = share.all.heads;
  options.all_kv_heads = share.all.kv_heads;
  options.first_head = share.heads.first;
  return options;
}

DecoderOptions detail::with_all_heads(DecoderOptions options) {
  if (options.all_heads == 0) return options;
  options.num_heads = options.all_heads;
  options.kv_heads = options.all_kv_heads;
  options.all_heads = options.all_kv_heads = options.first_head = 0;
  return options;
}

TensorPlan detail::decoder_plan(const DecoderOptions& options) {
  const auto last = "blocks." + std::to_string(options.num_layers - 1);
  return {
      {"blocks.*.attention", TensorRole::kRegion},      {"blocks.*.attention.qkv", TensorRole::kQkv},
      {"blocks.*.attention.out", TensorRole::kHeadRow}, {"blocks.*.mlp", TensorRole::kRegion},
      {"blocks.*.mlp.gate", TensorRole::kColumn},       {"blocks.*.mlp.up", TensorRole::kColumn},
      {"blocks.*.mlp.down", TensorRole::kRow},          {"blocks.*.shared", TensorRole::kRegion},
      {"blocks.*.shared.gate", TensorRole::kColumn},    {"blocks.*.shared.up", TensorRole::kColumn},
      {"blocks.*.shared.down", TensorRole::kRow},       {"blocks.*.experts", TensorRole::kExperts},
      {"tokens", TensorRole::kVocabEmbedding},          {"head", TensorRole::kVocabHead},
      {"blocks.0", TensorRole::kSequenceBegin},         {options.final_norm ? "norm" : last, TensorRole::kSequenceEnd}};
}

using detail::decoder_norm;

// ---- layers

DecoderEmbeddingImpl::DecoderEmbeddingImpl(int64_t rows, int64_t dim) {
  weight = register_parameter("weight", torch::empty({rows, dim}));
  torch::nn::init::normal_(weight, 0, kInitStd);
}

Tensor DecoderEmbeddingImpl::forward(const Tensor& ids) {
  return kernels::embedding(weight, ids);
}

DecoderLinearImpl::DecoderLinearImpl(int64_t in, int64_t out, bool has_bias, std::optional<double> std) {
  weight = register_parameter("weight", torch::empty({out, in}));
  if (std) torch::nn::init::normal_(weight, 0, *std);
  if (has_bias) bias = register_parameter("bias", torch::zeros({out}));
}

void DecoderLinearImpl::set_quantized(kernels::QuantizedWeight packed) {
  LEVIN_CHECK(packed.rows() == out_features() && packed.columns == in_features(), "[decoder] a quantized weight [",
              packed.rows(), ", ", packed.columns, "] for a layer of [", out_features(), ", ", in_features(), "]");
  auto& buffers = levin::detail::ModuleAccess::buffers(*this);
  if (quantized) {
    for (const char* name : {"weight", "weight_scales", "weight_nested"})
      if (buffers.contains(name)) buffers.erase(name);
  } else {
    levin::detail::ModuleAccess::parameters(*this).erase("weight");
  }
  weight.reset();
  register_buffer("weight", packed.codes);
  register_buffer("weight_scales", packed.scales);
  if (packed.nested.defined()) register_buffer("weight_nested", packed.nested);
  quantized = std::move(packed);
}

Tensor DecoderLinearImpl::forward(const Tensor& x) {
  auto y = quantized ? kernels::quantized_linear(x, *quantized, bias) : kernels::linear(x, weight, bias);
  for (auto& adapter : adapters) {
    const auto change = adapter(x);
    const auto behind = y.size(-1) - adapter->first_row - change.size(-1);
    y = y + (change.size(-1) == y.size(-1) ? change : at::constant_pad_nd(change, {adapter->first_row, behind}));
  }
  return y;
}

// ---- block

DecoderMlpImpl::Activation activation_of(const std::string& name) {
  return static_cast<DecoderMlpImpl::Activation>(activation_index(name));
}

namespace {

/// The kernel of an activation; none for those that are plain operators.
std::optional<kernels::Activation> fused_kind(DecoderMlpImpl::Activation activation) {
  using Kind = DecoderMlpImpl::Activation;
  switch (activation) {
    case Kind::kGelu:
      return kernels::Activation::kGelu;
    case Kind::kGeluTanh:
      return kernels::Activation::kGeluTanh;
    case Kind::kRelu:
      return kernels::Activation::kRelu;
    case Kind::kSilu:
      return kernels::Activation::kSilu;
    case Kind::kQuickGelu:
    case Kind::kTanh:
      return {};
  }
  levin::detail::fail("[decoder] unknown activation");
}

}  // namespace

Tensor activated(const Tensor& x, DecoderMlpImpl::Activation activation) {
  if (const auto kind = fused_kind(activation)) return kernels::activation(x, *kind);
  return activation == DecoderMlpImpl::Activation::kTanh ? at::tanh(x) : x * at::sigmoid(x * 1.702);
}

DecoderMlpImpl::DecoderMlpImpl(const DecoderOptions& options, int64_t asked)
    : activation(activation_of(options.activation)) {
  const auto dim = options.hidden_dim, width = asked > 0 ? asked : options.mlp_width();
  const bool biased = options.mlp_bias.value_or(options.bias);
  if (options.gated()) gate = register_module("gate", DecoderLinear(dim, width, biased, kInitStd));
  up = register_module("up", DecoderLinear(dim, width, biased, kInitStd));
  down = register_module("down", DecoderLinear(width, dim, biased, residual_std(options)));
}

Tensor DecoderMlpImpl::gated(const Tensor& x) {
  const auto opened = gate(x);
  if (activation == Activation::kSilu) return kernels::gated_silu(opened, up(x));
  return activated(opened, activation) * up(x);
}

Tensor DecoderMlpImpl::forward(const Tensor& x) {
  if (gate) return down(gated(x));
  const auto kind = fused_kind(activation);
  const bool bare = up->adapters.empty() && down->adapters.empty() && !up->quantized && !down->quantized;
  if (!kind || *kind == kernels::Activation::kSilu || !bare) return down(activated(up(x), activation));
  if (const auto result = nn::fp8_mlp(x, up, *kind, down)) return *result;
  return down(up->num_interceptors() > 0 ? kernels::activation(up(x), *kind)
                                         : kernels::linear_activation(x, up->weight, up->bias, *kind));
}

DecoderBlockImpl::DecoderBlockImpl(const DecoderOptions& options, int64_t layer)
    : dropout(options.dropout),
      attention_dropout(options.attention_out_dropout.value_or(options.dropout)),
      order(static_cast<Order>(word_index("block", options.block, kOrders))) {
  norm_1 = register_module("norm_1", decoder_norm(options));
  attention = register_module("attention", DecoderAttention(options, layer));
  norm_2 = register_module("norm_2", decoder_norm(options));
  if (!options.has_experts(layer)) mlp = register_module("mlp", DecoderMlp(options));
  if (!mlp) experts = register_module("experts", nn::Experts(experts_of(options)));
  if (!mlp && options.shared_expert_dim > 0) {
    shared = register_module("shared", DecoderMlp(options, options.shared_expert_dim));
    shared_gate = register_module("shared_gate", DecoderLinear(options.hidden_dim, 1, false, kInitStd));
  }
  if (order != Order::kSandwich) return;
  norm_1_after = register_module("norm_1_after", decoder_norm(options));
  norm_2_after = register_module("norm_2_after", decoder_norm(options));
}

Tensor DecoderBlockImpl::fed(const Tensor& x) {
  if (mlp) return mlp(x);
  auto y = experts(x);
  return shared ? y + at::sigmoid(shared_gate(x)) * shared(x) : y;
}

namespace {

bool is_bare(const DecoderLinear& layer) {
  return layer->num_interceptors() == 0 && layer->adapters.empty();
}

kernels::RowWeight row_weight(const DecoderLinear& layer) {
  return {layer->weight, layer->quantized ? &*layer->quantized : nullptr, layer->bias};
}

/// residual + layer(x), and the first half of the norm of `norm_weight` where that is defined and a kernel has it.
kernels::NormedRows added_rows(const Tensor& residual, DecoderLinear& layer, const Tensor& x,
                               const Tensor& norm_weight) {
  kernels::RowLinear rows{.x = x, .weight = row_weight(layer), .residual = residual, .norm_weight = norm_weight};
  if (norm_weight.defined() && kernels::has_row_linear(rows)) return kernels::row_linear_normed(rows);
  rows.norm_weight = Tensor();
  return kernels::has_row_linear(rows) ? kernels::row_linear_normed(rows) : kernels::NormedRows{residual + layer(x)};
}

/// The weight of a norm that the products around it can have inside; else undefined.
Tensor inside_weight(const nn::ResidualNorm& norm) {
  const auto& o = norm->options;
  return o.rms && o.affine && !o.unit_offset && norm->num_interceptors() == 0 ? norm->weight : Tensor();
}

}  // namespace

std::optional<nn::OpenStream> DecoderBlockImpl::decoded(const nn::OpenStream& stream) {
  const auto* step = detail::current_cache_step();
  if (!mlp || !step || !step->fused || order != Order::kPre || is_training() || !stream.sum.is_cuda()) return {};
  const bool bare = attention->num_interceptors() == 0 && mlp->num_interceptors() == 0 && is_bare(attention->qkv) &&
                    is_bare(attention->out) && is_bare(mlp->up) && is_bare(mlp->down) &&
                    (!mlp->gate || is_bare(mlp->gate));
  const auto kind = fused_kind(mlp->activation);
  if (!bare || !kind || (mlp->gate && *kind != kernels::Activation::kSilu)) return {};
  kernels::RowLinear inner{.x = stream.sum, .weight = row_weight(mlp->up)};
  if (mlp->gate)
    inner.gate = row_weight(mlp->gate);
  else
    inner.activation = kind;
  if (!kernels::has_row_linear(inner)) return {};
  const kernels::RowLinear first{.x = stream.weighted,
                                 .weight = row_weight(attention->qkv),
                                 .squares = stream.squares,
                                 .eps = norm_1->options.eps};
  Tensor x = stream.sum, qkv;
  if (stream.weighted.defined() && kernels::has_row_linear(first)) {
    qkv = kernels::row_linear(first);
  } else {
    auto [normed, sum] = norm_1(stream.sum, stream.branch);
    x = sum, qkv = attention->qkv(normed);
  }
  const auto h = added_rows(x, attention->out, attention->attend(qkv, {}, {}), inside_weight(norm_2));
  if (h.weighted.defined())
    inner.x = h.weighted, inner.squares = h.squares, inner.eps = norm_2->options.eps;
  else
    inner.x = std::get<0>(norm_2(h.sum));
  auto y = added_rows(h.sum, mlp->down, kernels::row_linear(inner), stream.next_weight);
  nn::OpenStream result{std::move(y.sum), {}};
  result.weighted = std::move(y.weighted), result.squares = std::move(y.squares);
  return result;
}

nn::OpenStream DecoderBlockImpl::open(nn::OpenStream stream, const Tensor& rotary, const Tensor& mask,
                                      bool first_only) {
  if (auto result = decoded(stream)) return std::move(*result);
  if (order != Order::kPre) return {closed(stream.closed(), rotary, mask, first_only), {}};
  auto [normed, x] = norm_1(stream.sum, stream.branch);
  stream = {};  // nobody needs it any more
  if (first_only) x = first_token(x);
  const auto [inner, h] = norm_2(x, attention(std::exchange(normed, {}), rotary, mask, first_only), attention_dropout);
  return {h, dropped(fed(inner), dropout, is_training())};
}

Tensor DecoderBlockImpl::closed(const Tensor& x, const Tensor& rotary, const Tensor& mask, bool first_only) {
  const auto drop = [&](const Tensor& branch) { return dropped(branch, dropout, is_training()); };
  const auto attended = [&](const Tensor& y) { return attention(y, rotary, mask, first_only); };
  const auto drop_attended = [&](const Tensor& y) { return dropped(attended(y), attention_dropout, is_training()); };
  const auto asked = [&](const Tensor& y) { return first_only ? first_token(y) : y; };
  switch (order) {
    case Order::kPost: {
      const auto [y, sum] = norm_1(asked(x), attended(x), attention_dropout);
      return std::get<0>(norm_2(y, fed(y), dropout));
    }
    case Order::kParallel: {
      const auto branch = drop_attended(std::get<0>(norm_1(x)));
      const auto of = asked(x);
      return drop(fed(std::get<0>(norm_2(of)))) + branch + of;
    }
    case Order::kResidual: {
      const auto y = std::get<0>(norm_1(x));
      const auto z = std::get<0>(norm_2(asked(y) + drop_attended(y)));
      return z + drop(fed(z));
    }
    case Order::kPre:
      return open({x, {}}, rotary, mask, first_only).closed();
    case Order::kSandwich: {
      const auto h = asked(x) + std::get<0>(norm_1_after(attended(std::get<0>(norm_1(x)))));
      return h + std::get<0>(norm_2_after(fed(std::get<0>(norm_2(h)))));
    }
  }
  return {};
}

Tensor DecoderBlockImpl::forward(const Tensor& x, const Tensor& rotary, const Tensor& mask, bool first_only) {
  return open({x, {}}, rotary, mask, first_only).closed();
}

// ---- the model

DecoderHeadImpl::DecoderHeadImpl(const DecoderOptions& options)
    : DecoderLinearImpl(options.embedding_width(), options.vocab_size, /*has_bias=*/false,
                        options.tied_head ? std::nullopt : std::optional(kInitStd)),
      loss_rows(options.loss_rows),
      softcap(options.logit_softcap) {}

Tensor DecoderHeadImpl::forward_part(const Tensor& x, const Tensor& targets) {
  const auto input = nn::copied_to_ranks(x, vocab->ranks);
  if (targets.defined())
    return nn::vocab_cross_entropy(input, weight, targets, *vocab,
                                   {.rows = loss_rows < 0 ? kRowsOfLoss : loss_rows, .softcap = softcap});
  return nn::gathered_from_ranks(capped(at::linear(input, weight), softcap), -1, vocab->counts(), vocab->ranks);
}

Tensor DecoderHeadImpl::forward(const Tensor& x, const Tensor& targets) {
  if (vocab) return forward_part(x, targets);
  if (!targets.defined()) {
    if (quantized) return capped(kernels::quantized_linear(x, *quantized), softcap);
    return capped(at::GradMode::is_enabled() ? at::linear(x, weight) : kernels::linear(x, weight), softcap);
  }
  const auto matrix = quantized ? kernels::dequantize(*quantized, x.scalar_type()) : weight;
  if (softcap == 0) return linear_cross_entropy(x, matrix, targets, loss_rows);
  const auto logits = capped(at::linear(x, matrix), softcap).flatten(0, -2);
  return cross_entropy(logits.to(at::promote_types(logits.scalar_type(), at::kFloat)), targets.flatten().to(at::kLong),
                       {.ignore_index = kIgnoredToken});
}

DecoderImpl::DecoderImpl(const DecoderOptions& asked) : options(asked) {
  check_options(options);
  const auto width = options.embedding_width();
  tokens = register_module("tokens", DecoderEmbedding(options.vocab_size, width));
  if (options.positions == "learned")
    positions = register_module("positions",
                                DecoderEmbedding(options.max_positions + options.position_offset, options.hidden_dim));
  if (options.embedding_norm) embedding_norm = register_module("embedding_norm", decoder_norm(options));
  if (width != options.hidden_dim) {
    project_in = register_module("project_in", DecoderLinear(width, options.hidden_dim, false, kInitStd));
    project_out = register_module("project_out", DecoderLinear(options.hidden_dim, width, false, kInitStd));
  }
  blocks = detail::register_blocks(*this, options);
  if (options.final_norm) norm = register_module("norm", decoder_norm(options));
  if (options.num_labels > 0) {
    score = register_module("score", DecoderLinear(width, options.num_labels, false, kInitStd));
    return;
  }
  head = register_module("head", DecoderHead(options));
  if (options.tied_head) levin::tie(*this, head->weight, tokens->weight);
}

TensorPlan DecoderImpl::tensor_plan() const {
  return detail::decoder_plan(options);
}

void DecoderImpl::take_context(const SharedContext& share) {
  context = share;
  // The load of experts is that of the whole sequence.
  for (auto& block : blocks)
    if (block->experts && !block->experts->batch_ranks) block->experts->batch_ranks = share->shared_ranks();
}

Tensor DecoderImpl::embedded(const Tensor& ids) {
  auto x = tokens(ids);
  if (options.embedding_scale != 1) x = x * at::full({}, options.embedding_scale, x.options());
  return project_in ? project_in(x) : x;
}

namespace {

/// The weight of the norm that reads what block i writes in a fused step: that of the next block, if it lies there all
/// the time.
Tensor next_weight(const std::vector<DecoderBlock>& blocks, size_t i) {
  const auto* step = detail::current_cache_step();
  if (!step || !step->fused || i + 1 == blocks.size() || blocks[i + 1]->num_interceptors() > 0) return {};
  return inside_weight(blocks[i + 1]->norm_1);
}

}  // namespace

Tensor DecoderImpl::through_blocks(Tensor x, const Tensor& rotary, const AttentionMasks& masks) {
  nn::OpenStream h{dropped(std::exchange(x, {}), options.embedding_dropout.value_or(options.dropout), is_training()),
                   {}};
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool windowed = options.window > 0 && (options.windowed_layers.empty() || options.windowed_layers[i]);
    h.next_weight = next_weight(blocks, i);
    h = nn::open_block<&DecoderBlockImpl::open>(blocks[i], std::move(h), rotary, windowed ? masks.windowed : masks.full,
                                                /*first_only=*/false);
  }
  const auto result = norm ? std::get<0>(norm(h.sum, h.branch)) : h.closed();
  return project_out ? project_out(result) : result;
}

Tensor DecoderImpl::hidden_states(const Tensor& ids, const Tensor& mask) {
  const auto states = own_states(ids, mask);
  return context ? context->gathered(states, 1, ids.size(1)) : states;
}

Tensor DecoderImpl::own_states(const Tensor& ids, const Tensor& mask) {
  LEVIN_CHECK(ids.dim() == 2 && (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt),
              "[decoder] tokens must be integers [B, T], got ", ids.scalar_type(), " ", ids.sizes());
  check_mask(mask, ids);
  const auto length = ids.size(1);
  LEVIN_CHECK(!options.bounded() || length <= options.max_positions, "[decoder] ", length, " tokens are more than the ",
              options.max_positions, " of max_positions");
  if (context) context->check_tokens(ids);
  auto x = placed(ids, mask);
  Tensor rotary;
  if (options.positions == "rotary") rotary = rotary_angles(options, length, mask, x.device(), context.get());
  if (embedding_norm) x = std::get<0>(embedding_norm(x));
  if (context) {
    const auto whole = ContextShare::mask(mask, length);
    return through_blocks(std::move(x), rotary, {whole, whole});
  }
  const auto masks = attention_masks(options, length, mask, x);
  return through_blocks(std::move(x), rotary, masks);
}

Tensor DecoderImpl::hidden_states(const Tensor& ids, DecoderCache& cache, const CachePass& pass) {
  LEVIN_CHECK(options.causal && pass.positions.sizes() == ids.sizes(), "[decoder] tokens ", ids.sizes(),
              " of a causal model and positions ", pass.positions.sizes(), " do not go together");
  const auto step = detail::cache_step(options, cache, pass);
  const detail::EnterCacheStep enter(step);
  auto x = embedded(ids);
  if (positions) x = x + positions(pass.positions + options.position_offset);
  if (embedding_norm) x = std::get<0>(embedding_norm(x));
  if (step.fused) return through_blocks(std::move(x), {}, {});
  const auto masks = detail::cached_masks(options, pass, x);
  return through_blocks(std::move(x), detail::cached_angles(options, cache, pass), masks);
}

Tensor DecoderImpl::class_logits(const Tensor& ids, const Tensor& mask) {
  LEVIN_CHECK(score, "[decoder] the model has no classifier");
  const auto hidden = hidden_states(ids, mask);
  Tensor counted;
  if (options.pad_token >= 0)
    counted = ids.ne(options.pad_token);
  else if (mask.defined())
    counted = mask.ne(0);
  if (!counted.defined()) return score(hidden.select(1, -1));
  const auto last = (at::arange(ids.size(1), ids.options().dtype(at::kLong)) * counted).amax(1);  // [B]
  return score(hidden.gather(1, last.view({-1, 1, 1}).expand({-1, 1, hidden.size(2)})).squeeze(1));
}

Tensor DecoderImpl::forward(const Tensor& ids, const Tensor& targets, const Tensor& mask) {
  if (score) {
    LEVIN_CHECK(!targets.defined(), "[decoder] a classifier of sequences has no loss of tokens");
    return class_logits(ids, mask);
  }
  if (targets.defined()) return loss_of(ids, targets, mask);
  const auto states = own_states(ids, mask);
  return context ? context->gathered(head(states), 1, ids.size(1)) : head(states);
}

Decoder decoder(const DecoderOptions& options) {
  return Decoder(options);
}

}  // namespace levin::models
