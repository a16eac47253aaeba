#include "levin/models/decoder_positions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "levin/core/error.h"
#include "levin/kernels/embedding/embedding.h"
#include "levin/models/decoder.h"

namespace levin::models {
namespace {

int64_t rotated_dims(const DecoderOptions& options) {
  return options.rotary_dim > 0 ? options.rotary_dim : options.head_width();
}

Tensor llama3_frequencies(const DecoderOptions& options, const Tensor& plain) {
  const auto& scaling = options.rotary_scaling;
  const auto length = static_cast<double>(trained_positions(options));
  const auto wavelengths = 2 * std::numbers::pi / plain;
  const auto divided = plain / scaling.factor;
  const auto share =
      (length / wavelengths - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  const auto blended = (1 - share) * plain / scaling.factor + share * plain;
  return at::where(wavelengths > length / scaling.low_freq_factor, divided,
                   at::where(wavelengths < length / scaling.high_freq_factor, plain, blended));
}

Tensor yarn_frequencies(const DecoderOptions& options, const Tensor& powers) {
  const auto& scaling = options.rotary_scaling;
  const auto dims = rotated_dims(options);
  const auto bound = [&](double rotations) {
    return static_cast<double>(dims) *
           std::log(static_cast<double>(trained_positions(options)) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(options.rotary_base));
  };
  auto low = bound(scaling.beta_fast), high = bound(scaling.beta_slow);
  if (scaling.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(dims - 1));
  if (low == high) high += 0.001;
  const auto ramp = ((at::arange(powers.size(0), powers.options()) - low) / (high - low)).clamp(0, 1);
  return (powers * scaling.factor).reciprocal() * ramp + powers.reciprocal() * (1 - ramp);
}

double yarn_attention_factor(const RotaryScaling& scaling) {
  if (scaling.attention_factor) return *scaling.attention_factor;
  const auto scale = [&](double m) { return scaling.factor <= 1 ? 1.0 : 0.1 * m * std::log(scaling.factor) + 1; };
  if (scaling.mscale != 0 && scaling.mscale_all_dim != 0) return scale(scaling.mscale) / scale(scaling.mscale_all_dim);
  return scale(1);
}

/// [T, T]: whether query i sees key j.
Tensor seen_keys(int64_t length, int64_t window, c10::Device device) {
  const auto place = at::arange(length, at::TensorOptions().dtype(at::kLong).device(device));
  const auto query = place.unsqueeze(1), key = place.unsqueeze(0);
  const auto before = key <= query;
  return window > 0 ? before & (key > query - window) : before;
}

}  // namespace

int64_t trained_positions(const DecoderOptions& options) {
  const auto asked = options.rotary_scaling.original_positions;
  return asked > 0 ? asked : options.max_positions;
}

double lowest_number(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return -65504;
    case at::kDouble:
      return std::numeric_limits<double>::lowest();
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::lowest();
    default:
      return std::numeric_limits<float>::lowest();
  }
}

Tensor token_positions(const Tensor& mask) {
  const auto numbers = mask.to(at::kLong);
  const auto place = (numbers.ne(0).to(at::kLong).cumsum(1) - 1).clamp_min(0);
  // Where the highest number so far rises a text begins; with 0 and 1 alone that is the first token.
  const auto reached = std::get<0>(at::cummax(numbers, 1));
  const auto before = at::constant_pad_nd(reached.slice(1, 0, -1), {1, 0});
  const auto begins = std::get<0>(at::cummax(place * reached.gt(before), 1));
  return place - begins;
}

Tensor rotary_frequencies(const DecoderOptions& options, int64_t length, c10::Device device) {
  const auto dims = rotated_dims(options);
  const auto& scaling = options.rotary_scaling;
  auto base = options.rotary_base;
  if (scaling.type == "dynamic") {
    const auto longest = static_cast<double>(trained_positions(options));
    const auto reached = std::max(static_cast<double>(length), longest);
    base *= std::pow(scaling.factor * reached / longest - (scaling.factor - 1),
                     static_cast<double>(dims) / static_cast<double>(dims - 2));
  }
  const auto exponents =
      at::arange(0, dims, 2, at::TensorOptions().dtype(at::kFloat).device(device)) / static_cast<double>(dims);
  const auto powers = at::pow(base, exponents);
  if (scaling.type == "yarn") return yarn_frequencies(options, powers);
  const auto plain = powers.reciprocal();
  if (scaling.type == "linear") return plain / scaling.factor;
  if (scaling.type == "llama3") return llama3_frequencies(options, plain);
  return plain;
}

Tensor rotary_angles(const DecoderOptions& options, int64_t length, const Tensor& mask, c10::Device device,
                     const ContextShare* context) {
  const auto own = [&](const Tensor& whole, int64_t dim) { return context ? context->take(whole, dim) : whole; };
  const auto kind = at::TensorOptions().dtype(at::kFloat).device(device);
  Tensor angles;
  if (!mask.defined()) {
    angles = at::outer(own(at::arange(length, kind), 0), rotary_frequencies(options, length, device));
  } else {
    const auto positions = own(token_positions(mask), 1).to(at::kFloat).unsqueeze(2);
    Tensor frequencies;
    if (options.rotary_scaling.type == "dynamic" && length > trained_positions(options)) {
      std::vector<Tensor> rows;
      const auto lengths = mask.ne(0).sum(1).cpu();
      for (int64_t i = 0; i < lengths.size(0); ++i)
        rows.push_back(rotary_frequencies(options, lengths[i].item<int64_t>(), device));
      frequencies = at::stack(rows).unsqueeze(1);  // [B, 1, R / 2]
    } else {
      frequencies = rotary_frequencies(options, length, device);
    }
    angles = positions * frequencies;
  }
  const auto turns = at::stack({angles.cos(), angles.sin()});
  if (options.rotary_scaling.type != "yarn") return turns;
  return turns * yarn_attention_factor(options.rotary_scaling);
}

Tensor alibi_slopes(int64_t heads, c10::Device device) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  const auto kind = at::TensorOptions().dtype(at::kDouble).device(device);
  const auto slopes = [](const Tensor& n, int64_t of) { return at::pow(2.0, n * (-8.0 / static_cast<double>(of))); };
  const auto first = slopes(at::arange(1, power + 1, kind), power);
  const auto rest = slopes(at::arange(heads - power, kind) * 2 + 1, 2 * power);
  return at::cat({first, rest}).to(at::kFloat);
}

Tensor alibi_slopes(const DecoderOptions& options, c10::Device device) {
  if (options.all_heads == 0) return alibi_slopes(options.num_heads, device);
  return alibi_slopes(options.all_heads, device).narrow(0, options.first_head, options.num_heads);
}

AttentionMasks attention_masks(const DecoderOptions& options, int64_t length, const Tensor& mask, const Tensor& like) {
  const auto device = like.device();
  if (!options.causal) {
    if (!mask.defined()) return {};
    // As transformers: the lowest finite number, so that a row without any token is an average and no NaN.
    const auto lowest = lowest_number(like.scalar_type());
    const auto hidden = (mask == 0).unsqueeze(1).unsqueeze(1);  // [B, 1, 1, T]
    const Tensor added = at::zeros(hidden.sizes(), like.options()).masked_fill_(hidden, lowest);
    return {added, added};
  }
  const bool alibi = options.positions == "alibi";
  const bool windowed = options.window > 0 && options.window < length;
  const auto made = [&](int64_t window) -> Tensor {
    if (!mask.defined() && !alibi && window == 0) return {};
    auto seen = seen_keys(length, window, device).unsqueeze(0).unsqueeze(0);  // [1, 1, T, T]
    if (mask.defined()) {
      const auto place = at::arange(length, at::TensorOptions().dtype(at::kLong).device(device));
      const auto query = mask.unsqueeze(1).unsqueeze(3), key = mask.unsqueeze(1).unsqueeze(1);
      const auto same = ((key == query) | (query == 0)) & (key != 0);
      seen = (seen & same) | (place.unsqueeze(1) == place.unsqueeze(0));
    }
    if (!alibi) return seen;
    // Distances, not positions of keys: softmax is the same, and 16-bit numbers stay exact near the diagonal.
    const auto place =
        mask.defined()
            ? token_positions(mask)
            : at::arange(length, at::TensorOptions().dtype(at::kLong).device(device)).unsqueeze(0);  // [B or 1, T]
    const auto distance = (place.unsqueeze(1) - place.unsqueeze(2)).unsqueeze(1).to(at::kFloat);  // [B or 1, 1, T, T]
    const auto added = alibi_slopes(options, device).view({-1, 1, 1}) * distance;
    return at::where(seen, added, -std::numeric_limits<float>::infinity()).to(like.scalar_type());
  };
  AttentionMasks masks;
  const bool some_full = !windowed || !options.windowed_layers.empty();
  if (some_full) masks.full = made(0);
  masks.windowed = windowed ? made(options.window) : masks.full;
  return masks;
}

void check_mask(const Tensor& mask, const Tensor& tokens) {
  if (!mask.defined()) return;
  const bool whole = mask.scalar_type() == at::kBool || at::isIntegralType(mask.scalar_type(), false);
  LEVIN_CHECK(whole && mask.sizes() == tokens.sizes(), "[decoder] a mask must be integers or booleans ", tokens.sizes(),
              ", as the tokens are, got ", mask.scalar_type(), " ", mask.sizes());
}

// ---- of a decoder

Tensor DecoderImpl::placed(const Tensor& ids, const Tensor& mask) {
  const auto own = [&](const Tensor& whole) { return context ? context->take(whole, -1) : whole; };
  if (!positions) return embedded(own(ids));
  const auto offset = options.position_offset, length = ids.size(1);
  if (mask.defined()) return embedded(own(ids)) + positions(own(token_positions(mask)) + offset);
  if (context || positions->num_interceptors() > 0)
    return embedded(own(ids)) + positions(own(at::arange(offset, offset + length, ids.options())));
  const auto& table = positions->weight;
  const auto rows = table.size(0) == length ? table : table.narrow(0, offset, length);
  const bool plain = tokens->num_interceptors() == 0 && options.embedding_scale == 1 && !project_in;
  return plain ? kernels::embedding_with_positions(tokens->weight, ids, rows) : embedded(ids) + rows;
}

}  // namespace levin::models
