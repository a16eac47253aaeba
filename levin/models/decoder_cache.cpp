#include "levin/models/decoder_cache.h"

#include <algorithm>
#include <limits>

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

#include "levin/core/error.h"
#include "levin/kernels/decode/decode.h"

namespace levin::models {
namespace {

thread_local const detail::CacheStep* g_cache_step = nullptr;

int64_t trained_positions(const DecoderOptions& options) {
  const auto asked = options.rotary_scaling.original_positions;
  return asked > 0 ? asked : options.max_positions;
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

DecoderCache::DecoderCache(const DecoderOptions& options, int64_t rows, int64_t capacity,
                           const c10::TensorOptions& kind) {
  LEVIN_CHECK(rows > 0 && capacity > 0, "[decoder] a cache needs rows and room, got ", rows, " rows of ", capacity);
  const auto shape = {rows, options.key_heads(), capacity, options.head_width()};
  for (int64_t i = 0; i < options.num_layers; ++i) {
    // Zeros: a slot that a mask hides must hold a number, since 0 * NaN is NaN.
    keys.push_back(at::zeros(shape, kind.requires_grad(false)));
    values.push_back(at::zeros(shape, kind.requires_grad(false)));
  }
  if (options.positions == "alibi") slopes = alibi_slopes(options, kind.device());
  if (options.positions == "rotary") rotary = angle_table(options, capacity).to(kind.device());
}

int64_t DecoderCache::nbytes() const {
  return 2 * static_cast<int64_t>(keys.size()) * static_cast<int64_t>(keys.front().nbytes());
}

void DecoderCache::copy_row(int64_t from, int64_t to, int64_t length) {
  for (auto* each : {&keys, &values})
    for (auto& tensor : *each) tensor[to].narrow(1, 0, length).copy_(tensor[from].narrow(1, 0, length));
}

void DecoderCache::select_rows(const Tensor& index, int64_t length) {
  for (auto* each : {&keys, &values})
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
  return kernels::decode_attention({.q = q,
                                    .k = k,
                                    .v = v,
                                    .positions = pass->positions,
                                    .angles = cache->rotary,
                                    .keys = cache->keys[i],
                                    .values = cache->values[i],
                                    .first_row = pass->first_row,
                                    .seen = pass->seen,
                                    .scale = scale,
                                    .softcap = softcap,
                                    .window = windowed ? options->window : 0,
                                    .slopes = cache->slopes});
}

void CacheStep::write(int64_t layer, const Tensor& k, const Tensor& v) const {
  const auto width = k.size(-1);
  const auto i = static_cast<size_t>(layer);
  // Under autocast keys have another dtype than weights.
  for (auto* each : {&cache->keys[i], &cache->values[i]})
    if (each->scalar_type() != k.scalar_type()) *each = each->to(k.scalar_type());
  cache->keys[i].view({-1, width}).index_copy_(0, slots, k.reshape({-1, width}));
  cache->values[i].view({-1, width}).index_copy_(0, slots, v.reshape({-1, width}));
}

Tensor CacheStep::keys(int64_t layer, int64_t rows) const {
  return cache->keys[static_cast<size_t>(layer)].narrow(0, pass->first_row, rows).narrow(2, 0, pass->seen);
}

Tensor CacheStep::values(int64_t layer, int64_t rows) const {
  return cache->values[static_cast<size_t>(layer)].narrow(0, pass->first_row, rows).narrow(2, 0, pass->seen);
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
  LEVIN_CHECK(at.dim() == 2 && at.scalar_type() == at::kLong && pass.first_row + at.size(0) <= cache.rows() &&
                  pass.seen <= cache.capacity(),
              "[decoder] ", at.size(0), " rows from row ", pass.first_row, " that see ", pass.seen,
              " slots do not fit a cache of ", cache.rows(), " rows of ", cache.capacity());
  CacheStep step{.options = &options, .cache = &cache, .pass = &pass, .slots = {}};
  step.fused = pass.seen > 0 && at.size(1) == 1 && kernels::has_decode_kernel(cache.keys.front(), options.head_width());
  if (step.fused) return step;
  const auto heads = cache.keys.front().size(1), capacity = cache.capacity();
  const auto count = [&](int64_t n) { return at::arange(n, at.options()); };
  const auto row = (count(at.size(0)) + pass.first_row).view({-1, 1, 1}) * (heads * capacity);
  const auto slots = row + at.unsqueeze(2) + count(heads) * capacity;  // [B, T, Hkv]
  step.slots = slots.flatten();
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
