#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// Numbers of every dtype, as kernels compute with them.
namespace levin::kernels::detail {

/// In what numbers of a dtype are added up.
template <class T>
struct WideNumber {
  using type = float;
};
template <>
struct WideNumber<double> {
  using type = double;
};
template <class T>
using Wide = typename WideNumber<T>::type;

__device__ __forceinline__ float widened(float value) {
  return value;
}
__device__ __forceinline__ double widened(double value) {
  return value;
}
__device__ __forceinline__ float widened(__half value) {
  return __half2float(value);
}
__device__ __forceinline__ float widened(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <class T, class A>
__device__ __forceinline__ T narrowed(A value) {
  return static_cast<T>(value);
}
template <>
__device__ __forceinline__ __half narrowed<__half, float>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrowed<__nv_bfloat16, float>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half narrowed<__half, double>(double value) {
  return __double2half(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrowed<__nv_bfloat16, double>(double value) {
  return __double2bfloat16(value);
}

/// The number, rounded to the dtype of its place.
template <class T, class A>
__device__ __forceinline__ void assign(T& out, A value) {
  out = narrowed<T>(value);
}

/// Two numbers in one register.
template <class T>
__device__ __forceinline__ uint32_t packed_pair(float low, float high);
template <>
__device__ __forceinline__ uint32_t packed_pair<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ uint32_t packed_pair<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// The two numbers of a register.
template <class T>
__device__ __forceinline__ float2 unpacked(uint32_t pair) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2_raw raw{static_cast<unsigned short>(pair & 0xffffu), static_cast<unsigned short>(pair >> 16)};
    return __half22float2(__half2(raw));
  } else {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  }
}

/// Eight numbers times eight others, added up.
template <class T>
__device__ __forceinline__ float product_of_packs(const uint4& x, const uint4& y) {
  const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
  float product = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 a = unpacked<T>(xs[i]), b = unpacked<T>(ys[i]);
    product = fmaf(a.x, b.x, fmaf(a.y, b.y, product));
  }
  return product;
}

/// 2^x; what float has no normal number for is zero.
__device__ __forceinline__ float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace levin::kernels::detail
