#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "levin/kernels/numbers.cuh"
#include "levin/kernels/quantized/quantized_launch.h"

/// Numbers of packed matrices in registers.
namespace levin::kernels::detail {

static __constant__ const float kNf4OnDevice[16] = {kNf4Codes[0],  kNf4Codes[1],  kNf4Codes[2],  kNf4Codes[3],
                                                    kNf4Codes[4],  kNf4Codes[5],  kNf4Codes[6],  kNf4Codes[7],
                                                    kNf4Codes[8],  kNf4Codes[9],  kNf4Codes[10], kNf4Codes[11],
                                                    kNf4Codes[12], kNf4Codes[13], kNf4Codes[14], kNf4Codes[15]};

template <class T>
struct Pairs;

template <>
struct Pairs<__half> {
  static constexpr uint32_t kNibbleBase = 0x64006400u;  // 1024, 1024
  static constexpr float kNibbleValue = 1024;
  static constexpr uint32_t kOnes = 0x3c003c00u;
  /// 64 has units of 1 in its bits 4 to 7.
  static constexpr uint32_t kRaisedBase = 0x54005400u, kRaisedMask = 0x00f000f0u;
  static constexpr float kRaised = 64;
  /// Nibbles j of both halves of a word, where kRaisedMask is.
  template <int j>
  static __device__ __forceinline__ uint32_t placed(uint32_t word) {
    return j == 0 ? word << 4 : word >> (4 * (j - 1));
  }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return packed_pair<__half>(low, high); }
  static __device__ __forceinline__ uint32_t subtract(uint32_t a, uint32_t b) {
    const __half2 result = __hsub2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
    return *reinterpret_cast<const uint32_t*>(&result);
  }
  /// Bytes 2 * i and 2 * i + 1 of a word of int8.
  template <int i>
  static __device__ __forceinline__ uint32_t of_int8(uint32_t word) {
    // 1024 + n has the byte n in its last bits.
    const auto raised = __byte_perm(word ^ 0x80808080u, 0x64646464u, i == 0 ? 0x4140 : 0x4342);
    return subtract(raised, 0x64806480u);  // 1152, 1152
  }
  static __device__ __forceinline__ uint32_t of_fp8(uint16_t two) {
    const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3);
    return static_cast<uint32_t>(pair.x) | static_cast<uint32_t>(pair.y) << 16;
  }
};

template <>
struct Pairs<__nv_bfloat16> {
  static constexpr uint32_t kNibbleBase = 0x43004300u;  // 128, 128
  static constexpr float kNibbleValue = 128;
  static constexpr uint32_t kOnes = 0x3f803f80u;
  static constexpr uint32_t kRaisedBase = kNibbleBase, kRaisedMask = 0x000f000fu;
  static constexpr float kRaised = kNibbleValue;
  template <int j>
  static __device__ __forceinline__ uint32_t placed(uint32_t word) {
    return word >> (4 * j);
  }
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    return packed_pair<__nv_bfloat16>(low, high);
  }
  static __device__ __forceinline__ uint32_t subtract(uint32_t a, uint32_t b) {
    const __nv_bfloat162 result =
        __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
    return *reinterpret_cast<const uint32_t*>(&result);
  }
  template <int i>
  static __device__ __forceinline__ uint32_t of_int8(uint32_t word) {
    // 0x43 before a byte: 128 + its seven low bits, with an exponent one larger where the eighth is set. That bit alone
    // is 256 or 128. The difference is the number in two's complement, exactly.
    const auto raised = __byte_perm(word, 0x43434343u, i == 0 ? 0x4140 : 0x4342);
    return subtract(raised & 0xff7fff7fu, raised & 0xff80ff80u);
  }
  static __device__ __forceinline__ uint32_t of_fp8(uint16_t two) {
    const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3);
    const float2 wide = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    return pack(wide.x, wide.y);
  }
};

/// The scale of group i of an nf4 matrix.
__device__ __forceinline__ float nf4_scale(const PackedMatrix& matrix, int64_t i) {
  if (!matrix.nested_codes) return __ldg(static_cast<const float*>(matrix.scales) + i);
  const auto code = __ldg(static_cast<const uint8_t*>(matrix.scales) + i);
  const float2 outer = __ldg(reinterpret_cast<const float2*>(matrix.nested) + i / kGroupsOfNested);
  return __fadd_rn(__fmul_rn(__ldg(matrix.nested_codes + code), outer.x), outer.y);
}

}  // namespace levin::kernels::detail
