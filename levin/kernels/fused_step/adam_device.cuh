#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "levin/kernels/fused_step/adam_launch.h"

/// What the kernels of the fused steps share on the device.
namespace levin::kernels::detail {

constexpr int kStepThreads = 256;
constexpr int kPack = 4;  // neighbours that one thread takes together

template <class From>
struct alignas(sizeof(From) * kPack < 16 ? sizeof(From) * kPack : 16) StepPack {
  From values[kPack];
};

template <class T>
__device__ void load_as(T& out, float value) {
  out = static_cast<T>(value);
}
template <class T>
__device__ void load_as(T& out, double value) {
  out = static_cast<T>(value);
}
template <class T>
__device__ void load_as(T& out, __half value) {
  out = static_cast<T>(__half2float(value));
}
template <class T>
__device__ void load_as(T& out, __nv_bfloat16 value) {
  out = static_cast<T>(__bfloat162float(value));
}
template <class T>
__device__ void store_as(float& out, T value) {
  out = static_cast<float>(value);
}
template <class T>
__device__ void store_as(double& out, T value) {
  out = static_cast<double>(value);
}
template <class T>
__device__ void store_as(__half& out, T value) {
  out = __float2half_rn(static_cast<float>(value));
}
template <class T>
__device__ void store_as(__nv_bfloat16& out, T value) {
  out = __float2bfloat16_rn(static_cast<float>(value));
}

template <class From, class T>
__device__ void load_typed(const void* from, int64_t at, int count, bool packs, T (&out)[kPack]) {
  const From* place = static_cast<const From*>(from) + at;
  if (packs) {
    const StepPack<From> pack = *reinterpret_cast<const StepPack<From>*>(place);
#pragma unroll
    for (int k = 0; k < kPack; ++k) load_as(out[k], pack.values[k]);
  } else {
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      out[k] = 0;
      if (k < count) load_as(out[k], place[k]);
    }
  }
}

template <class To, class T>
__device__ void store_typed(void* to, int64_t at, int count, bool packs, const T (&in)[kPack]) {
  To* place = static_cast<To*>(to) + at;
  if (packs) {
    StepPack<To> pack;
#pragma unroll
    for (int k = 0; k < kPack; ++k) store_as(pack.values[k], in[k]);
    *reinterpret_cast<StepPack<To>*>(place) = pack;
  } else {
#pragma unroll
    for (int k = 0; k < kPack; ++k)
      if (k < count) store_as(place[k], in[k]);
  }
}

/// The dtype is the same for a whole block, so that asking for it costs little beside the memory.
template <class T>
__device__ void load_pack(const void* from, NumberType type, int64_t at, int count, bool packs, T (&out)[kPack]) {
  switch (type) {
    case NumberType::kFloat:
      return load_typed<float>(from, at, count, packs, out);
    case NumberType::kDouble:
      return load_typed<double>(from, at, count, packs, out);
    case NumberType::kHalf:
      return load_typed<__half>(from, at, count, packs, out);
    case NumberType::kBFloat16:
      return load_typed<__nv_bfloat16>(from, at, count, packs, out);
    case NumberType::kNone:
      return;
  }
}

template <class T>
__device__ void store_pack(void* to, NumberType type, int64_t at, int count, bool packs, const T (&in)[kPack]) {
  switch (type) {
    case NumberType::kFloat:
      return store_typed<float>(to, at, count, packs, in);
    case NumberType::kDouble:
      return store_typed<double>(to, at, count, packs, in);
    case NumberType::kHalf:
      return store_typed<__half>(to, at, count, packs, in);
    case NumberType::kBFloat16:
      return store_typed<__nv_bfloat16>(to, at, count, packs, in);
    case NumberType::kNone:
      return;
  }
}

/// Which entry this thread block works on.
template <class Table>
__device__ int entry_of_block(const Table& table) {
  int low = 0, high = table.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (static_cast<int>(blockIdx.x) >= table.first_block[middle])
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

/// A loss scale on the device; 1 where there is none.
__device__ inline double device_scale(const float* scale) {
  return scale != nullptr ? static_cast<double>(*scale) : 1.0;
}

/// The moments of one element; `square` is what stands under the root. The parameter has shrunk already.
template <class T>
__device__ void update_moments(const AdamStep<T>& f, T param, T grad, T& average, T& square) {
  const T g = grad * f.grad_factor + f.decay * param;
  average += f.take1 * (g - average);
  square = f.beta2 * square + f.take2 * g * g;
}
template <class T>
__device__ T updated(const AdamStep<T>& f, T param, T average, T square) {
  return param - f.step_size * average / (sqrt(square) * f.root_factor + f.eps);
}

}  // namespace levin::kernels::detail
