#include <algorithm>
#include <cstring>
#include <vector>

#include <ATen/Functions.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Half.h>

#include "levin/core/error.h"
#include "levin/core/parallel.h"
#include "levin/kernels/quantized/quantized_detail.h"

// Packed matrices on the CPU. Rows are decoded a few hundred numbers at a time into a buffer that stays in the cache,
// so that the traffic of memory is that of the packed numbers.
namespace levin::kernels::detail {
namespace {

constexpr int64_t kSpan = 512;  // a multiple of kPackedGroup
constexpr int64_t kLanes = 16;

struct NumberPair {
  float first, second;
};

const NumberPair* nf4_pairs() {
  static const auto table = [] {
    std::array<NumberPair, 256> pairs;
    for (size_t i = 0; i < 256; ++i) pairs[i] = {kNf4Codes[i >> 4], kNf4Codes[i & 15]};
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

float nf4_scale(const PackedMatrix& m, int64_t i) {
  if (!m.nested_codes) return static_cast<const float*>(m.scales)[i];
  const auto code = static_cast<const uint8_t*>(m.scales)[i];
  const auto* outer = m.nested + i / kGroupsOfNested * 2;
  // Two roundings: a fused one would differ from bitsandbytes.
  volatile const float product = m.nested_codes[code] * outer[0];
  return product + outer[1];
}

void decode_nf4(const PackedMatrix& m, int64_t at, int64_t count, float* to) {
  const auto* codes = static_cast<const uint8_t*>(m.codes) + at / 2;
  const auto* pairs = nf4_pairs();
  for (int64_t i = 0; i < count; i += kPackedGroup, codes += kPackedGroup / 2, to += kPackedGroup) {
    const auto scale = nf4_scale(m, (at + i) / m.group);
    for (int64_t j = 0; j < kPackedGroup / 2; ++j) {
      const auto pair = pairs[codes[j]];
      to[2 * j] = pair.first * scale;
      to[2 * j + 1] = pair.second * scale;
    }
  }
}

void decode_int4(const PackedMatrix& m, int64_t at, int64_t count, float* to) {
  const auto* codes = static_cast<const uint8_t*>(m.codes) + at / 2;
  const auto* scales = static_cast<const c10::Half*>(m.scales);
  for (int64_t i = 0; i < count; i += kPackedGroup) {
    const auto group = (at + i) / m.group;
    const float scale = scales[2 * group], zero = scales[2 * group + 1];
    for (int64_t word = 0; word < kPackedGroup / 8; ++word, codes += 4, to += 8) {
      uint32_t bits;
      std::memcpy(&bits, codes, 4);
      for (int j = 0; j < 8; ++j) to[j] = (static_cast<float>(bits >> (j / 2 * 4 + j % 2 * 16) & 15) - zero) * scale;
    }
  }
}

/// `count` numbers from number `at` of the matrix on, all of one row; `to` has room for them.
void decode_span(const PackedMatrix& m, int64_t row, int64_t at, int64_t count, float* to) {
  switch (m.format) {
    case WeightFormat::kNf4:
      return decode_nf4(m, at, count, to);
    case WeightFormat::kInt4:
      return decode_int4(m, at, count, to);
    case WeightFormat::kInt8: {
      const auto* codes = static_cast<const int8_t*>(m.codes) + at;
      const auto scale = static_cast<const float*>(m.scales)[row];
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(codes[i]) * scale * kInt8Unit;
      return;
    }
    default: {
      const auto* codes = static_cast<const uint8_t*>(m.codes) + at;
      const auto* numbers = fp8_numbers();
      const auto scale = static_cast<const float*>(m.scales)[row];
      for (int64_t i = 0; i < count; ++i) to[i] = numbers[codes[i]] * scale;
    }
  }
}

template <class T>
void decode_rows(const PackedMatrix& m, T* to) {
  const auto grain = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(m.columns, 1));
  parallel_for(0, m.rows, grain, [&](int64_t begin, int64_t end) {
    float buffer[kSpan];
    for (auto row = begin; row < end; ++row)
      for (int64_t column = 0; column < m.columns; column += kSpan) {
        const auto at = row * m.columns + column, count = std::min(kSpan, m.columns - column);
        decode_span(m, row, at, count, buffer);
        for (int64_t i = 0; i < count; ++i) to[at + i] = static_cast<T>(buffer[i]);
      }
  });
}

/// Adds in kLanes sums, which a compiler keeps in vectors.
float dot(const float* a, const float* b, int64_t count) {
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += a[i + j] * b[i + j];
  float total = 0;
  for (; i < count; ++i) total += a[i] * b[i];
  for (const auto sum : sums) total += sum;
  return total;
}

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

Tensor skinny_linear_cpu(const Tensor& given, const QuantizedWeight& weight, const Tensor& bias) {
  const auto m = packed_matrix(weight);
  const auto x = given.to(at::kFloat).contiguous();
  auto result = at::empty({x.size(0), m.rows}, x.options());
  const auto count = x.size(0);
  const auto* from = x.const_data_ptr<float>();
  auto* to = result.mutable_data_ptr<float>();
  const auto grain = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(m.columns, 1));
  parallel_for(0, m.rows, grain, [&](int64_t begin, int64_t end) {
    float buffer[kSpan];
    for (auto row = begin; row < end; ++row) {
      float sums[kSkinnyRows] = {};
      for (int64_t column = 0; column < m.columns; column += kSpan) {
        const auto width = std::min(kSpan, m.columns - column);
        decode_span(m, row, row * m.columns + column, width, buffer);
        for (int64_t i = 0; i < count; ++i) sums[i] += dot(buffer, from + i * m.columns + column, width);
      }
      for (int64_t i = 0; i < count; ++i) to[i * m.rows + row] = sums[i];
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
