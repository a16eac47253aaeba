#include "levin/kernels/quantized/quantized_weight.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/kernels/fused_step/adam_8bit.h"
#include "levin/kernels/quantized/quantized_detail.h"

namespace levin::kernels {
namespace {

constexpr float kLargestFp8 = 448;
/// Numbers of a matrix that are quantized at a time: the copies in float are small beside the matrix.
constexpr int64_t kSliceNumbers = 1 << 24;

/// What a word says. `group`: columns that share a scale where the word does not say how many; 0: a row has one.
struct QuantizationRow {
  std::string_view word;
  Quantization kind;
  int64_t group = 0;
  bool nested = false;
};

constexpr std::array kQuantizations{QuantizationRow{"int8", Quantization::kInt8},
                                    QuantizationRow{"int8-weights", Quantization::kInt8Weights},
                                    QuantizationRow{"int4", Quantization::kInt4, 128},
                                    QuantizationRow{"nf4", Quantization::kNf4, 64},
                                    QuantizationRow{"nf4-double", Quantization::kNf4, 64, true},
                                    QuantizationRow{"fp8", Quantization::kFp8}};

const QuantizationRow& row_of(Quantization kind, bool nested) {
  for (const auto& row : kQuantizations)
    if (row.kind == kind && row.nested == nested) return row;
  levin::detail::fail(
      levin::detail::concat("[quantize] unknown kind ", static_cast<int>(kind), nested ? " (nested)" : ""));
}

Tensor bytes_of(const Tensor& x, int64_t rows) {
  return x.contiguous().view({rows, -1}).view(at::kByte);
}

Tensor table_on(const float* values, int64_t count, c10::Device device) {
  return at::from_blob(const_cast<float*>(values), {count}, at::kFloat).to(device);
}

Tensor middles(const Tensor& codes) {
  const auto count = codes.numel();
  return (codes.narrow(0, 0, count - 1) + codes.narrow(0, 1, count - 1)) / 2;
}

/// Numbers [n, group] as the nearest of sorted codes after division by the largest, and these.
std::pair<Tensor, Tensor> nearest_codes(const Tensor& blocks, const Tensor& codes) {
  const auto largest = blocks.abs().amax({1});
  const auto scaled = (blocks * largest.clamp_min(1e-38).reciprocal().unsqueeze(1)).clamp_(-1, 1);
  return {at::bucketize(scaled, middles(codes), /*out_int32=*/true).to(at::kByte), largest};
}

struct Slice {
  Tensor codes, scales;
};

Slice nf4_slice(const Tensor& x, int64_t group) {
  const auto table = table_on(detail::kNf4Codes, 16, x.device());
  const auto [codes, largest] = nearest_codes(x.view({-1, group}), table);
  const auto pairs = codes.view({x.size(0), -1, 2});
  return {(pairs.select(2, 0) * 16) + pairs.select(2, 1), largest.view({x.size(0), -1})};
}

Slice int4_slice(const Tensor& x, int64_t group) {
  const auto blocks = x.view({-1, group});
  const auto low = blocks.amin({1}).clamp_max(0), high = blocks.amax({1}).clamp_min(0);
  const auto scale = ((high - low) / 15).to(at::kHalf);
  // Zero is one of the steps: what is zero stays zero.
  const auto wide = scale.to(at::kFloat);
  const auto divisor = wide.masked_fill(wide == 0, 1);
  const auto zero = (-low / divisor).round_().clamp_(0, 15);
  const auto codes = ((blocks / divisor.unsqueeze(1)).round_() + zero.unsqueeze(1))
                         .clamp_(0, 15)
                         .to(at::kByte)
                         .view({x.size(0), -1, 8});
  const auto nibble = [&](int64_t i) { return codes.select(2, i < 4 ? 2 * i : 2 * i - 7); };
  std::vector<Tensor> bytes;
  for (int64_t i = 0; i < 8; i += 2) bytes.push_back(nibble(i) + nibble(i + 1) * 16);
  return {at::stack(bytes, 2).view({x.size(0), -1}), at::stack({scale, zero.to(at::kHalf)}, 1).view({x.size(0), -1})};
}

Slice int8_slice(const Tensor& x) {
  const auto narrow = x.to(at::kHalf);  // as bitsandbytes does before it rounds
  const auto largest = narrow.abs().amax({1}).to(at::kFloat);
  const auto factor = (largest.reciprocal() * 127.0).masked_fill_(largest == 0, 0);
  return {(narrow.to(at::kFloat) * factor.unsqueeze(1)).round_().to(at::kChar), largest};
}

Slice fp8_slice(const Tensor& x) {
  const auto largest = x.abs().amax({1});
  const auto scale = (largest / kLargestFp8).masked_fill_(largest == 0, 1);
  return {(x / scale.unsqueeze(1)).clamp_(-kLargestFp8, kLargestFp8).to(at::kFloat8_e4m3fn), scale};
}

Slice quantized_slice(const Tensor& x, const QuantizeOptions& options) {
  switch (options.kind) {
    case Quantization::kNf4:
      return nf4_slice(x, options.group);
    case Quantization::kInt4:
      return int4_slice(x, options.group);
    case Quantization::kFp8:
      return fp8_slice(x);
    case Quantization::kInt8:
    case Quantization::kInt8Weights:
      return int8_slice(x);
  }
  levin::detail::fail("[quantize] unknown kind");
}

/// Bytes of the codes and of the scales of one row.
std::pair<int64_t, int64_t> row_bytes(const QuantizeOptions& options, int64_t columns) {
  if (options.has_groups()) return {columns / 2, columns / options.group * 4};
  return {columns, 4};
}

/// Whether the groups of all parts can be cut into blocks of nested scales.
bool parts_nest(const std::vector<int64_t>& parts, int64_t groups) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](auto rows) { return rows * groups % detail::kGroupsOfNested == 0; });
}

/// Scales float [rows, groups] of each part in 8 bits. Parts that do not end with a block keep the numbers that their
/// codes stand for, in float.
void nest_scales(QuantizedWeight& weight, const std::vector<int64_t>& parts) {
  const auto scales = weight.scales.view(at::kFloat);
  const auto codes = table_on(dynamic_codes(true).data(), 256, scales.device());
  const bool fits = parts_nest(parts, scales.size(1));
  std::vector<Tensor> all_codes, all_nested;
  int64_t first = 0;
  for (const auto rows : parts) {
    auto part = scales.narrow(0, first, rows).reshape({-1});
    first += rows;
    const auto offset = part.mean();
    const auto count = part.numel(), blocks = (count + detail::kGroupsOfNested - 1) / detail::kGroupsOfNested;
    const auto padded = at::constant_pad_nd(part - offset, {0, blocks * detail::kGroupsOfNested - count});
    const auto [indices, largest] = nearest_codes(padded.view({blocks, detail::kGroupsOfNested}), codes);
    if (fits) {
      all_codes.push_back(indices.view({rows, -1}));
      all_nested.push_back(at::stack({largest, offset.expand_as(largest)}, 1));
    } else {
      const auto values = codes.index_select(0, indices.reshape({-1}).to(at::kLong)).view_as(indices);
      part.copy_((values * largest.unsqueeze(1) + offset).reshape({-1}).narrow(0, 0, count));
    }
  }
  if (!fits) return;
  weight.scales = at::cat(all_codes);
  weight.nested = at::cat(all_nested).view(at::kByte);
}

QuantizedWeight empty_weight(const QuantizeOptions& options, int64_t rows, int64_t columns, c10::Device device) {
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(device);
  const auto [codes, scales] = row_bytes(options, columns);
  return {options, columns, at::empty({rows, codes}, bytes), at::empty({rows, scales}, bytes), {}};
}

}  // namespace

QuantizeOptions quantization_of(const char* operation, std::string_view given) {
  const auto colon = given.find(':');
  const std::string word(given.substr(0, colon));
  const auto row = std::find_if(kQuantizations.begin(), kQuantizations.end(),
                                [&](const QuantizationRow& each) { return each.word == word; });
  if (row == kQuantizations.end()) {
    std::vector<std::string> known;
    for (const auto& each : kQuantizations) known.emplace_back(each.word);
    fail_unknown(operation, "quantize", word, known);
  }
  QuantizeOptions options{.kind = row->kind, .group = row->group, .nested = row->nested};
  if (colon == given.npos) return options;
  const std::string number(given.substr(colon + 1));
  const bool digits = !number.empty() && number.size() < 6 && number.find_first_not_of("0123456789") == number.npos;
  options.group = digits ? std::atoll(number.c_str()) : 0;
  LEVIN_CHECK(options.has_groups() && options.group > 0 && options.group % detail::kPackedGroup == 0, "[", operation,
              "] quantize \"", shown(std::string(given)), "\": groups are of int4 and nf4, and multiples of ",
              detail::kPackedGroup, ", as in \"int4:64\"");
  return options;
}

std::string quantization_name(const QuantizeOptions& options) {
  const auto& row = row_of(options.kind, options.nested);
  std::string name(row.word);
  if (row.group != 0 && options.group != 0 && options.group != row.group) name += ":" + std::to_string(options.group);
  return name;
}

int64_t QuantizedWeight::nbytes() const {
  return static_cast<int64_t>(codes.nbytes() + scales.nbytes() + (nested.defined() ? nested.nbytes() : 0));
}

QuantizedWeight quantize(const Tensor& weight, QuantizeOptions options, const std::vector<int64_t>& given_parts) {
  LEVIN_CHECK(weight.dim() == 2 && weight.is_floating_point(), "[quantize] needs a matrix of floating numbers, got ",
              weight.toString(), " ", weight.sizes());
  const auto rows = weight.size(0), columns = weight.size(1);
  if (options.group == 0) options.group = row_of(options.kind, options.nested).group;
  LEVIN_CHECK(!options.has_groups() || (options.group > 0 && options.group % detail::kPackedGroup == 0),
              "[quantize] groups are multiples of ", detail::kPackedGroup, ", not ", options.group);
  LEVIN_CHECK(!options.has_groups() || columns % options.group == 0, "[quantize] ", quantization_name(options),
              " needs columns in groups of ", options.group, "; the matrix has ", columns,
              " (int8, int8-weights and fp8 take any)");
  const auto parts = given_parts.empty() ? std::vector<int64_t>{rows} : given_parts;
  auto result = empty_weight(options, rows, columns, weight.device());
  const bool nests = options.nested && parts_nest(parts, columns / std::max<int64_t>(options.group, 1));
  if (weight.is_meta() || weight.numel() == 0) {
    if (nests) {
      const auto groups = columns / options.group;
      result.scales = at::empty({rows, groups}, result.codes.options());
      result.nested = at::empty({rows * groups / detail::kGroupsOfNested, 8}, result.codes.options());
    }
    return result;
  }
  const at::NoGradGuard no_grad;
  const auto step = std::max<int64_t>(1, kSliceNumbers / columns);
  for (int64_t row = 0; row < rows; row += step) {
    const auto count = std::min(step, rows - row);
    const auto x = weight.detach().narrow(0, row, count).to(at::kFloat).contiguous();
    const auto slice = quantized_slice(x, options);
    result.codes.narrow(0, row, count).copy_(bytes_of(slice.codes, count));
    result.scales.narrow(0, row, count).copy_(bytes_of(slice.scales, count));
  }
  const auto scales =
      options.kind == Quantization::kInt4 ? result.scales.view(at::kHalf) : result.scales.view(at::kFloat);
  LEVIN_CHECK(scales.isfinite().all().item<bool>(),
              "[quantize] the matrix has numbers that are not finite, or too large for ", quantization_name(options));
  if (options.nested) nest_scales(result, parts);
  return result;
}

}  // namespace levin::kernels
