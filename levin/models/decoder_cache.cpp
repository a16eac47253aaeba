#include "levin/models/decoder_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "levin/core/error.h"
#include "levin/kernels/decode/decode.h"

namespace levin::models {
namespace {

thread_local const detail::CacheStep* g_cache_step = nullptr;

/// Numbers [..., D] as bytes, with a scale for each D of them. The bytes of fp8 are uint8, which every operator takes.
std::pair<Tensor, Tensor> quantized_heads(const Tensor& x, CacheDtype dtype) {
  const auto wide = x.to(at::kFloat);
  const auto most = dtype == CacheDtype::kInt8 ? 127.0 : 448.0;
  auto scale = wide.abs().amax(-1, /*keepdim=*/true) / most;
  scale = scale.masked_fill(scale == 0, 1);
  const auto scaled = (wide / scale).clamp(-most, most);
  return {dtype == CacheDtype::kInt8 ? scaled.round().to(at::kChar) : scaled.to(at::kFloat8_e4m3fn).view(at::kByte),
          scale.squeeze(-1)};
}

Tensor restored_heads(const Tensor& bytes, const Tensor& scale, CacheDtype dtype, at::ScalarType as) {
  const auto numbers = dtype == CacheDtype::kInt8 ? bytes : bytes.view(at::kFloat8_e4m3fn);
  return (numbers.to(at::kFloat) * scale.unsqueeze(-1)).to(as);
}

/// On the CPU: float32 [2, capacity, R / 2].
Tensor angle_table(const DecoderOptions& options, int64_t capacity) {
  if (options.rotary_scaling.type != "dynamic") return rotary_angles(options, capacity, {}, c10::kCPU);
  const auto trained = std::min(capacity, trained_positions(options));
  std::vector<Tensor> rows{rotary_angles(options, trained, {}, c10::kCPU)};
  for (auto p = trained; p < capacity; ++p) {
    const auto angles = (rotary_frequencies(options, p + 1, c10::kCPU) * static_cast<double>(p)).unsqueeze(0);
    rows.push_back(at::stack({angles.cos(), angles.sin()}));
  }
  return at::cat(rows, 1);
}

}  // namespace

CacheDtype cache_dtype_of(const std::string& name) {
  if (name == "auto") return CacheDtype::kAuto;
  if (name == "int8") return CacheDtype::kInt8;
  LEVIN_CHECK(name == "fp8", "[decoder] a cache of \"", name, "\" is not known (known: auto, int8, fp8)");
  return CacheDtype::kFp8;
}

DecoderCache::DecoderCache(const DecoderOptions& options, int64_t rows, int64_t capacity,
                           const c10::TensorOptions& kind, const DecoderCacheOptions& more)
    : dtype(more.dtype), of_model(c10::typeMetaToScalarType(kind.dtype())) {
  LEVIN_CHECK(rows > 0 && capacity > 0, "[decoder] a cache needs rows and room, got ", rows, " rows of ", capacity);
  const auto shape = {rows, options.key_heads(), capacity, options.head_width()};
  const auto plain = kind.requires_grad(false);
  const auto kept = !quantized() ? plain : plain.dtype(dtype == CacheDtype::kInt8 ? at::kChar : at::kByte);
  for (int64_t i = 0; i < options.num_layers; ++i) {
    // Zeros: a slot that a mask hides must hold a number, since 0 * NaN is NaN.
    keys.push_back(at::zeros(shape, kept));
    values.push_back(at::zeros(shape, kept));
    if (!quantized()) continue;
    const auto heads = {rows, options.key_heads(), capacity};
    key_scales.push_back(at::zeros(heads, plain.dtype(at::kFloat)));
    value_scales.push_back(at::zeros(heads, plain.dtype(at::kFloat)));
  }
  const auto positions = more.positions > 0 ? more.positions : capacity;
  if (options.positions == "alibi") slopes = alibi_slopes(options, kind.device());
  if (options.positions == "rotary") rotary = angle_table(options, positions).to(kind.device());
}

int64_t DecoderCache::nbytes() const {
  size_t bytes = 0;
  for (const auto* each : {&keys, &values, &key_scales, &value_scales})
    for (const auto& tensor : *each) bytes += tensor.nbytes();
  return static_cast<int64_t>(bytes);
}

int64_t DecoderCache::token_bytes(const DecoderOptions& options, CacheDtype dtype, at::ScalarType of_model) {
  const auto head = dtype == CacheDtype::kAuto ? options.head_width() * static_cast<int64_t>(c10::elementSize(of_model))
                                               : options.head_width() + static_cast<int64_t>(sizeof(float));
  return 2 * options.num_layers * options.key_heads() * head;
}

void DecoderCache::copy_row(int64_t from, int64_t to, int64_t length) {
  for (auto* each : {&keys, &values, &key_scales, &value_scales})
    for (auto& tensor : *each) tensor[to].narrow(1, 0, length).copy_(tensor[from].narrow(1, 0, length));
}

void DecoderCache::select_rows(const Tensor& index, int64_t length) {
  for (auto* each : {&keys, &values, &key_scales, &value_scales})
    for (auto& tensor : *each) {
      auto used = tensor.narrow(2, 0, length);
      used.narrow(0, 0, index.size(0)).copy_(used.index_select(0, index));
    }
}

namespace detail {

Tensor CacheStep::decode(int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                         double softcap) const {
  const auto i = static_cast<size_t>(layer);
  const bool windowed = options->window > 0 && (options->windowed_layers.empty() || options->windowed_layers[i]);
  const kernels::DecodeArguments arguments{.q = q,
                                           .k = k,
                                           .v = v,
                                           .positions = pass->positions,
                                           .angles = cache->rotary,
                                           .keys = cache->keys[i],
                                           .values = cache->values[i],
                                           .key_scales = cache->quantized() ? cache->key_scales[i] : Tensor(),
                                           .value_scales = cache->quantized() ? cache->value_scales[i] : Tensor(),
                                           .first_row = pass->first_row,
                                           .blocks = pass->blocks,
                                           .seen = pass->seen,
                                           .scale = scale,
                                           .softcap = softcap,
                                           .window = windowed ? options->window : 0,
                                           .slopes = cache->slopes};
  return q.is_cpu() ? kernels::decode_attention_cpu(arguments) : kernels::decode_attention(arguments);
}

void CacheStep::write(int64_t layer, Tensor& k, Tensor& v) const {
  const auto i = static_cast<size_t>(layer);
  const auto put = [&](Tensor& kept, const Tensor& x) { kept.flatten(0, 2).index_copy_(0, slots, x.flatten(0, 2)); };
  if (!cache->quantized()) {
    // Under autocast keys have another dtype than weights.
    for (auto* each : {&cache->keys[i], &cache->values[i]})
      if (each->scalar_type() != k.scalar_type()) *each = each->to(k.scalar_type());
    put(cache->keys[i], k), put(cache->values[i], v);
    return;
  }
  const auto keep = [&](Tensor& kept, Tensor& kept_scales, Tensor& x) {
    const auto [bytes, scales] = quantized_heads(x, cache->dtype);
    put(kept, bytes), put(kept_scales, scales);
    if (pass->seen == 0) x = restored_heads(bytes, scales, cache->dtype, x.scalar_type());
  };
  keep(cache->keys[i], cache->key_scales[i], k);
  keep(cache->values[i], cache->value_scales[i], v);
}

Tensor CacheStep::seen(const Tensor& kept, const std::vector<Tensor>& scales, int64_t layer, const Tensor& q) const {
  const auto rows = q.size(0), heads = kept.size(1);
  const auto found = [&](const Tensor& of) {
    if (!seen_slots.defined()) return of.narrow(0, pass->first_row, rows).narrow(2, 0, pass->seen);
    auto shape = of.sizes().vec();
    shape[0] = rows, shape[1] = heads, shape[2] = pass->seen;
    return of.flatten(0, 2).index_select(0, seen_slots).view(shape);
  };
  if (!cache->quantized()) return found(kept);
  return restored_heads(found(kept), found(scales[static_cast<size_t>(layer)]), cache->dtype, q.scalar_type());
}

Tensor CacheStep::keys(int64_t layer, const Tensor& q) const {
  return seen(cache->keys[static_cast<size_t>(layer)], cache->key_scales, layer, q);
}

Tensor CacheStep::values(int64_t layer, const Tensor& q) const {
  return seen(cache->values[static_cast<size_t>(layer)], cache->value_scales, layer, q);
}

EnterCacheStep::EnterCacheStep(const CacheStep& step) {
  LEVIN_CHECK(!g_cache_step, "[decoder] a pass with a cache is under way in this thread");
  g_cache_step = &step;
}

EnterCacheStep::~EnterCacheStep() {
  g_cache_step = nullptr;
}

const CacheStep* current_cache_step() {
  return g_cache_step;
}

CacheStep cache_step(const DecoderOptions& options, DecoderCache& cache, const CachePass& pass) {
  const auto& at = pass.positions;
  const auto& blocks = pass.blocks;
  const auto capacity = cache.capacity();
  LEVIN_CHECK(at.dim() == 2 && at.scalar_type() == at::kLong, "[decoder] positions must be int64 [B, T], got ",
              at.scalar_type(), " ", at.sizes());
  LEVIN_CHECK(blocks.defined() || (pass.first_row + at.size(0) <= cache.rows() && pass.seen <= capacity), "[decoder] ",
              at.size(0), " rows from row ", pass.first_row, " that see ", pass.seen, " slots do not fit a cache of ",
              cache.rows(), " rows of ", capacity);
  LEVIN_CHECK(!blocks.defined() || (blocks.dim() == 2 && blocks.size(0) == at.size(0) &&
                                    blocks.scalar_type() == at::kLong && pass.seen <= blocks.size(1) * capacity),
              "[decoder] blocks must be int64 [B, N] with room for ", pass.seen, " slots of ", at.size(0),
              " rows, got ", blocks.defined() ? blocks.sizes() : at.sizes());
  CacheStep step{.options = &options, .cache = &cache, .pass = &pass, .slots = {}, .seen_slots = {}};
  const bool on_cpu = !blocks.defined() && !cache.quantized() && !at::GradMode::is_enabled() &&
                      kernels::has_decode_kernel_cpu(cache.keys.front());
  step.fused = pass.seen > 0 && at.size(1) == 1 &&
               (on_cpu || kernels::has_decode_kernel(at.device(), cache.of_model, at.size(0), options.head_width(),
                                                     blocks.defined() ? capacity : 0));
  if (step.fused) return step;
  const auto heads = cache.keys.front().size(1);
  const auto count = [&](int64_t n) { return at::arange(n, at.options()); };
  // Of a row of the cache and a slot of it: the place of its first head.
  const auto first = [&](const Tensor& row, const Tensor& slot) { return row * (heads * capacity) + slot; };
  const auto by_head = count(heads) * capacity;
  if (!blocks.defined()) {
    const auto row = (count(at.size(0)) + pass.first_row).view({-1, 1});
    step.slots = (first(row, at).unsqueeze(2) + by_head).flatten();  // [B, T, Hkv]
    return step;
  }
  const auto block_of = at.div(capacity, "floor");
  step.slots = (first(blocks.gather(1, block_of), at.remainder(capacity)).unsqueeze(2) + by_head).flatten();
  if (pass.seen == 0) return step;
  const auto whole = first(blocks.unsqueeze(2), count(capacity)).flatten(1).narrow(1, 0, pass.seen);  // [B, seen]
  step.seen_slots = (whole.unsqueeze(1) + by_head.view({-1, 1})).flatten();                           // [B, Hkv, seen]
  return step;
}

Tensor cached_angles(const DecoderOptions& options, const DecoderCache& cache, const CachePass& pass) {
  if (!cache.rotary.defined()) return {};
  const auto& at = pass.positions;
  const auto longest = pass.lengths.empty() ? 0 : *std::max_element(pass.lengths.begin(), pass.lengths.end());
  if (options.rotary_scaling.type == "dynamic" && longest > trained_positions(options)) {
    std::vector<Tensor> rows;
    for (const auto length : pass.lengths) rows.push_back(rotary_frequencies(options, length, at.device()));
    const auto angles = at.to(at::kFloat).unsqueeze(2) * at::stack(rows).unsqueeze(1);
    return at::stack({angles.cos(), angles.sin()});
  }
  const auto half = cache.rotary.size(2);
  return cache.rotary.index_select(1, at.flatten()).view({2, at.size(0), at.size(1), half});
}

AttentionMasks cached_masks(const DecoderOptions& options, const CachePass& pass, const Tensor& like) {
  const auto& at = pass.positions;
  if (pass.seen == 0) return attention_masks(options, at.size(1), {}, like);
  const auto place = at::arange(pass.seen, at.options());
  const auto query = at.unsqueeze(1).unsqueeze(3);  // [B, 1, T, 1]
  const auto before = place <= query;
  Tensor added;
  if (options.positions == "alibi") {
    const auto distance = (place - query).to(at::kFloat);
    added = alibi_slopes(options, at.device()).view({-1, 1, 1}) * distance;
  }
  const auto made = [&](const Tensor& visible) -> Tensor {
    if (!added.defined()) return visible;
    return at::where(visible, added, -std::numeric_limits<float>::infinity()).to(like.scalar_type());
  };
  AttentionMasks masks;
  masks.full = made(before);
  masks.windowed = options.window > 0 ? made(before & (place > query - options.window)) : masks.full;
  return masks;
}

Tensor cached_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, double scale,
                        double softcap) {
  const auto b = q.size(0), t = q.size(1), heads = q.size(2), width = q.size(3), shared = k.size(1);
  const auto groups = heads / shared;
  // The queries of heads that share keys are rows of one product, so that keys are never repeated.
  const auto rows = q.view({b, t, shared, groups, width})
                        .permute({0, 2, 3, 1, 4})
                        .reshape({b, shared, groups * t, width});  // [B, Hkv, G * T, D]
  auto added = mask;
  if (mask.size(1) > 1)
    added = mask.view({mask.size(0), shared, groups * t, mask.size(3)});
  else if (t > 1 && groups > 1)
    added = mask.repeat({1, 1, groups, 1});
  Tensor mixed;
  if (softcap == 0) {
    added = added.expand({b, -1, groups * t, -1});
    mixed = at::scaled_dot_product_attention(rows, k, v, added, 0, false, scale);
  } else {
    const auto scores = at::tanh(at::matmul(rows, k.transpose(-1, -2)) * scale / softcap) * softcap;
    const auto lowest = -std::numeric_limits<float>::infinity();
    const auto hidden = added.scalar_type() == at::kBool ? at::where(added, scores, lowest) : scores + added;
    mixed = at::matmul(at::softmax(hidden, -1, at::kFloat).to(v.scalar_type()), v);
  }
  return mixed.view({b, shared, groups, t, width}).permute({0, 3, 1, 2, 4}).reshape({b, t, heads * width});
}

}  // namespace detail
}  // namespace levin::models
