#include <algorithm>
#include <array>

#include <ATen/Functions.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Half.h>

#include "levin/core/error.h"
#include "levin/core/parallel.h"
#include "levin/kernels/decode/few_rows.h"
#include "levin/kernels/quantized/quantized_detail.h"

// Packed matrices on the CPU. Rows are decoded a few hundred numbers at a time into a buffer that stays in the cache,
// so that the traffic of memory is that of the packed numbers.
namespace levin::kernels::detail {
namespace {

constexpr int64_t kSpan = 512;  // a multiple of kPackedGroup
constexpr int64_t kLanes = 16;

/// What both halves of a byte stand for.
struct NumberPair {
  float first, second;
};
using PairTable = std::array<NumberPair, 256>;

const NumberPair* nf4_pairs() {
  static const auto table = [] {
    PairTable pairs;
    for (size_t i = 0; i < 256; ++i) pairs[i] = {kNf4Codes[i >> 4], kNf4Codes[i & 15]};
    return pairs;
  }();
  return table.data();
}

const NumberPair* int4_pairs() {
  static const auto table = [] {
    PairTable pairs;
    for (size_t i = 0; i < 256; ++i) pairs[i] = {static_cast<float>(i & 15), static_cast<float>(i >> 4)};
    return pairs;
  }();
  return table.data();
}

const float* fp8_numbers() {
  static const auto table = [] {
    std::array<float, 256> numbers;
    for (size_t i = 0; i < 256; ++i)
      numbers[i] = static_cast<float>(c10::Float8_e4m3fn(static_cast<uint8_t>(i), c10::Float8_e4m3fn::from_bits()));
    return numbers;
  }();
  return table.data();
}

bool is_grouped(const PackedMatrix& m) {
  return m.format == WeightFormat::kNf4 || m.format == WeightFormat::kInt4;
}

/// Numbers that are decoded at a time: they share a scale.
int64_t span_of(const PackedMatrix& m) {
  return is_grouped(m) ? kPackedGroup : kSpan;
}

float nf4_scale(const PackedMatrix& m, int64_t i) {
  if (!m.nested_codes) return static_cast<const float*>(m.scales)[i];
  const auto code = static_cast<const uint8_t*>(m.scales)[i];
  const auto* outer = m.nested + i / kGroupsOfNested * 2;
  // Two roundings: a fused one would differ from bitsandbytes.
  volatile const float product = m.nested_codes[code] * outer[0];
  return product + outer[1];
}

/// Of the span at number `at`, in a row.
float scale_of(const PackedMatrix& m, int64_t row, int64_t at) {
  if (m.format == WeightFormat::kNf4) return nf4_scale(m, at / m.group);
  if (m.format == WeightFormat::kInt4) return static_cast<const c10::Half*>(m.scales)[at / m.group * 2];
  return static_cast<const float*>(m.scales)[row];
}

void decode_int4(const PackedMatrix& m, int64_t at, float* to) {
  const auto* codes = static_cast<const uint8_t*>(m.codes) + at / 2;
  const auto* pairs = int4_pairs();
  const float zero = static_cast<const c10::Half*>(m.scales)[at / m.group * 2 + 1];
  for (int64_t word = 0; word < kPackedGroup / 8; ++word, codes += 4, to += 8) {
    const auto a = pairs[codes[0]], b = pairs[codes[1]], c = pairs[codes[2]], d = pairs[codes[3]];
    to[0] = a.first, to[1] = c.first, to[2] = a.second, to[3] = c.second;
    to[4] = b.first, to[5] = d.first, to[6] = b.second, to[7] = d.second;
    for (int i = 0; i < 8; ++i) to[i] -= zero;
  }
}

/// A span of numbers from number `at` of the matrix on, all of one row, without their scale. `to` has room for it.
void decode_span(const PackedMatrix& m, int64_t at, int64_t count, float* to) {
  const auto* bytes = static_cast<const uint8_t*>(m.codes);
  switch (m.format) {
    case WeightFormat::kNf4: {
      const auto* pairs = nf4_pairs();
      for (int64_t i = 0; i < kPackedGroup / 2; ++i) {
        const auto pair = pairs[bytes[at / 2 + i]];
        to[2 * i] = pair.first;
        to[2 * i + 1] = pair.second;
      }
      return;
    }
    case WeightFormat::kInt4:
      return decode_int4(m, at, to);
    case WeightFormat::kInt8: {
      const auto* codes = static_cast<const int8_t*>(m.codes) + at;
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(codes[i]);
      return;
    }
    case WeightFormat::kFp8: {
      const auto* numbers = fp8_numbers();
      for (int64_t i = 0; i < count; ++i) to[i] = numbers[bytes[at + i]];
      return;
    }
    case WeightFormat::kPlain:
      break;
  }
  levin::detail::fail("[quantized_linear] the matrix is not packed");
}

template <class T>
void decode_rows(const PackedMatrix& m, T* to) {
  const auto grain = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(m.columns, 1));
  const auto span = span_of(m);
  const bool int8 = m.format == WeightFormat::kInt8;
  parallel_for(0, m.rows, grain, [&](int64_t begin, int64_t end) {
    float buffer[kSpan];
    for (auto row = begin; row < end; ++row)
      for (int64_t column = 0; column < m.columns; column += span) {
        const auto at = row * m.columns + column, count = std::min(span, m.columns - column);
        decode_span(m, at, count, buffer);
        const auto scale = scale_of(m, row, at);
        for (int64_t i = 0; i < count; ++i) buffer[i] *= scale;
        if (int8)
          for (int64_t i = 0; i < count; ++i) buffer[i] *= kInt8Unit;
        for (int64_t i = 0; i < count; ++i) to[at + i] = static_cast<T>(buffer[i]);
      }
  });
}

/// Sums that a compiler keeps in vectors: number i belongs to sum i % kLanes.
struct Lanes {
  float sums[kLanes] = {};

  void add(const float* a, const float* b, int64_t count, float scale) {
    float part[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      for (int64_t j = 0; j < kLanes; ++j) part[j] += a[i + j] * b[i + j];
    for (; i < count; ++i) part[0] += a[i] * b[i];
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += part[j] * scale;
  }
  float total() const {
    float total = 0;
    for (const auto sum : sums) total += sum;
    return total;
  }
};

}  // namespace

Tensor dequantize_cpu(const QuantizedWeight& weight, at::ScalarType dtype) {
  const auto m = packed_matrix(weight);
  auto result = at::empty({m.rows, m.columns}, at::TensorOptions().dtype(dtype));
  switch (dtype) {
    case at::kFloat:
      decode_rows(m, result.mutable_data_ptr<float>());
      break;
    case at::kHalf:
      decode_rows(m, result.mutable_data_ptr<c10::Half>());
      break;
    case at::kBFloat16:
      decode_rows(m, result.mutable_data_ptr<c10::BFloat16>());
      break;
    case at::kDouble:
      decode_rows(m, result.mutable_data_ptr<double>());
      break;
    default:
      LEVIN_CHECK(false, "[dequantize] to ", dtype, " is not known (float, half, bfloat16, double)");
  }
  return result;
}

namespace {

/// The product with numbers of 8 bits, and their scales.
void int8_dots(const PackedMatrix& m, const Tensor& x, Tensor& result) {
  const DotRows job{.matrix = m.codes,
                    .type = LoopNumber::kInt8,
                    .columns = m.columns,
                    .x = x.const_data_ptr<float>(),
                    .count = x.size(0),
                    .out = result.mutable_data_ptr<float>(),
                    .stride = m.rows};
  for_matrix_rows(m.rows, m.columns, [&](int64_t begin, int64_t end) {
    dot_rows(job, begin, end);
    for (int64_t i = 0; i < job.count; ++i)
      for (auto row = begin; row < end; ++row) job.out[i * m.rows + row] *= scale_of(m, row, 0) * kInt8Unit;
  });
}

void int4_dots(const PackedMatrix& m, const Tensor& x, Tensor& result) {
  const auto count = x.size(0);
  auto placed = at::empty_like(x);
  const auto* from = x.const_data_ptr<float>();
  auto* to = placed.mutable_data_ptr<float>();
  for (int64_t i = 0; i < count; ++i)
    for (int64_t c = 0; c < m.columns; ++c) to[i * m.columns + int4_place(c)] = from[i * m.columns + c];
  const auto sums = x.view({count, m.columns / m.group, m.group}).sum(2);
  const DotInt4 job{.words = static_cast<const uint32_t*>(m.codes),
                    .scales = static_cast<const uint16_t*>(m.scales),
                    .columns = m.columns,
                    .group = m.group,
                    .x = to,
                    .sums = sums.const_data_ptr<float>(),
                    .count = count,
                    .out = result.mutable_data_ptr<float>(),
                    .stride = m.rows};
  for_matrix_rows(m.rows, m.columns, [&](int64_t begin, int64_t end) { dot_rows_int4(job, begin, end); });
}

}  // namespace

Tensor skinny_linear_cpu(const Tensor& given, const QuantizedWeight& weight, const Tensor& bias) {
  const auto m = packed_matrix(weight);
  const auto x = given.to(at::kFloat).contiguous();
  auto result = at::empty({x.size(0), m.rows}, x.options());
  if (m.format == WeightFormat::kInt8 || m.format == WeightFormat::kInt4) {
    m.format == WeightFormat::kInt8 ? int8_dots(m, x, result) : int4_dots(m, x, result);
    if (bias.defined()) result += bias;
    return result.to(given.scalar_type());
  }
  const auto count = x.size(0);
  const auto* from = x.const_data_ptr<float>();
  auto* to = result.mutable_data_ptr<float>();
  const auto grain = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(m.columns, 1));
  const auto span = span_of(m);
  const bool grouped = is_grouped(m);
  parallel_for(0, m.rows, grain, [&](int64_t begin, int64_t end) {
    float buffer[kSpan];
    for (auto row = begin; row < end; ++row) {
      Lanes lanes[kSkinnyRows];
      for (int64_t column = 0; column < m.columns; column += span) {
        const auto at = row * m.columns + column, width = std::min(span, m.columns - column);
        decode_span(m, at, width, buffer);
        const auto scale = grouped ? scale_of(m, row, at) : 1.0f;
        for (int64_t i = 0; i < count; ++i) lanes[i].add(buffer, from + i * m.columns + column, width, scale);
      }
      const auto scale = grouped ? 1.0f : scale_of(m, row, 0);
      for (int64_t i = 0; i < count; ++i) to[i * m.rows + row] = lanes[i].total() * scale;
    }
  });
  if (bias.defined()) result += bias;
  return result.to(given.scalar_type());
}

Tensor int8_product_cpu(const Tensor& a, const Tensor& b) {
  const auto rows = a.size(0), width = a.size(1), columns = b.size(0);
  auto result = at::empty({rows, columns}, a.options().dtype(at::kInt));
  const auto *left = a.const_data_ptr<int8_t>(), *right = b.const_data_ptr<int8_t>();
  auto* to = result.mutable_data_ptr<int32_t>();
  parallel_for(0, columns, 16, [&](int64_t begin, int64_t end) {
    for (auto column = begin; column < end; ++column)
      for (int64_t row = 0; row < rows; ++row) {
        int32_t sum = 0;
        for (int64_t i = 0; i < width; ++i)
          sum += static_cast<int32_t>(left[row * width + i]) * right[column * width + i];
        to[row * columns + column] = sum;
      }
  });
  return result;
}

}  // namespace levin::kernels::detail
