#pragma once

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

}  // namespace levin::kernels::detail
