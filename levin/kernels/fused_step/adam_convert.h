#pragma once

#include <cstdint>
#include <cstring>

#include "levin/kernels/fused_step/adam_launch.h"

/// 16-bit numbers to float and back by integer arithmetic without branches, in loops of a fixed length: compilers turn
/// them into vector instructions on every machine.
namespace levin::kernels::detail {

constexpr int kLanes = 16;

inline __attribute__((always_inline)) float as_float(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
inline __attribute__((always_inline)) uint32_t as_bits(float number) {
  return __builtin_bit_cast(uint32_t, number);
}

inline __attribute__((always_inline)) float from_bfloat16(uint16_t number) {
  return as_float(static_cast<uint32_t>(number) << 16);
}

/// Rounds to the nearest, of two to the even one; NaN stays NaN.
inline __attribute__((always_inline)) uint16_t to_bfloat16(float number) {
  const uint32_t bits = as_bits(number);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

inline __attribute__((always_inline)) float from_half(uint16_t number) {
  constexpr uint32_t kRebias = 112u << 23;
  const uint32_t sign = (number & 0x8000u) << 16, shifted = (number & 0x7fffu) << 13;
  const uint32_t exponent = shifted & 0x0f800000u;
  const uint32_t normal = shifted + kRebias, special = normal + kRebias;
  // A subnormal one has no leading bit: the difference of two normal numbers is exact.
  const uint32_t subnormal = as_bits(as_float(normal + (1u << 23)) - as_float(kRebias + (1u << 23)));
  uint32_t bits = exponent == 0x0f800000u ? special : normal;
  bits = exponent == 0 ? subnormal : bits;
  return as_float(bits | sign);
}

/// Rounds to the nearest, of two to the even one; what is too large becomes infinity.
inline __attribute__((always_inline)) uint16_t to_half(float number) {
  const uint32_t bits = as_bits(number), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding this lets the sum's own rounding drop the bits that a subnormal half has no place for.
  constexpr uint32_t kMagic = 126u << 23;
  const uint32_t subnormal = as_bits(as_float(magnitude) + as_float(kMagic)) - kMagic;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= (143u << 23) ? special : half;
  return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
}

/// Numbers [at, at + count) of a tensor into `out`, whose room ends at a multiple of kLanes: the rest of the last lanes
/// is zero.
template <class T>
inline __attribute__((always_inline)) void load_numbers(const void* from, NumberType type, int64_t at, int64_t count,
                                                        T* __restrict out) {
  const int64_t whole = count - count % kLanes;
  const auto convert = [&](const auto* in, auto&& to_number) __attribute__((always_inline)) {
    for (int64_t i = 0; i < whole; i += kLanes)
      for (int j = 0; j < kLanes; ++j) out[i + j] = static_cast<T>(to_number(in[i + j]));
    if (whole == count) return;
    for (int j = 0; j < kLanes; ++j)
      out[whole + j] = whole + j < count ? static_cast<T>(to_number(in[whole + j])) : T(0);
  };
  switch (type) {
    case NumberType::kFloat:
      return convert(static_cast<const float*>(from) + at, [](float x) { return x; });
    case NumberType::kDouble:
      return convert(static_cast<const double*>(from) + at, [](double x) { return x; });
    case NumberType::kHalf:
      return convert(static_cast<const uint16_t*>(from) + at, [](uint16_t x) { return from_half(x); });
    case NumberType::kBFloat16:
      return convert(static_cast<const uint16_t*>(from) + at, [](uint16_t x) { return from_bfloat16(x); });
    case NumberType::kNone:
      return;
  }
}

template <class T>
inline __attribute__((always_inline)) void store_numbers(const T* __restrict in, NumberType type, int64_t at,
                                                         int64_t count, void* to) {
  const int64_t whole = count - count % kLanes;
  const auto convert = [&](auto* __restrict out, auto&& from_number) __attribute__((always_inline)) {
    for (int64_t i = 0; i < whole; i += kLanes)
      for (int j = 0; j < kLanes; ++j) out[i + j] = from_number(in[i + j]);
    for (int64_t i = whole; i < count; ++i) out[i] = from_number(in[i]);
  };
  switch (type) {
    case NumberType::kFloat:
      return convert(static_cast<float*>(to) + at, [](T x) { return static_cast<float>(x); });
    case NumberType::kDouble:
      return convert(static_cast<double*>(to) + at, [](T x) { return static_cast<double>(x); });
    case NumberType::kHalf:
      return convert(static_cast<uint16_t*>(to) + at, [](T x) { return to_half(static_cast<float>(x)); });
    case NumberType::kBFloat16:
      return convert(static_cast<uint16_t*>(to) + at, [](T x) { return to_bfloat16(static_cast<float>(x)); });
    case NumberType::kNone:
      return;
  }
}

}  // namespace levin::kernels::detail
