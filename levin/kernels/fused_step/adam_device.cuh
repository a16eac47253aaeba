#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "levin/kernels/fused_step/adam_launch.h"
#include "levin/kernels/tensor_table.cuh"
#include "levin/kernels/whole_store.cuh"

/// What the kernels of the fused steps share on the device.
namespace levin::kernels::detail {

/// Loads kernels that were not launched yet.
template <class... Kernel>
int load_kernels(Kernel*... kernel) {
  cudaFuncAttributes attributes;
  int result = 0;
  ((result = result != 0 ? result : static_cast<int>(cudaFuncGetAttributes(&attributes, kernel))), ...);
  return result;
}

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
    store_whole(reinterpret_cast<StepPack<To>*>(place), pack);
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

/// A step of Adam with the numbers and the roundings of torch's fused kernel: graphs of it continue where eager steps
/// were, bit by bit. Products that nvcc would fuse there are fused here by name.
template <class T>
struct TorchAdamStep {
  T lr, beta1, beta2, decay, eps, correction1, root_correction2, scale;
  bool scaled, maximize, decoupled;
};

template <class T>
__device__ TorchAdamStep<T> torch_adam_step(const AdamNumbers& n, float steps, const float* scale) {
  TorchAdamStep<T> f;
  f.lr = static_cast<T>(n.lr);
  f.beta1 = static_cast<T>(n.beta1);
  f.beta2 = static_cast<T>(n.beta2);
  f.decay = static_cast<T>(n.weight_decay);
  f.eps = static_cast<T>(n.eps);
  f.correction1 = 1 - pow(f.beta1, static_cast<T>(steps));
  f.root_correction2 = sqrt(1 - pow(f.beta2, static_cast<T>(steps)));
  f.scaled = scale != nullptr;
  f.scale = f.scaled ? static_cast<T>(*scale) : static_cast<T>(1);
  f.maximize = n.maximize;
  f.decoupled = n.decoupled;
  return f;
}

template <class T>
__device__ void update_moments(const TorchAdamStep<T>& f, T& param, T grad, T& average, T& square) {
  if (f.scaled) grad /= f.scale;
  if (f.maximize) grad = -grad;
  if (f.decay != 0) {
    if (f.decoupled)
      param = fma(-(f.lr * f.decay), param, param);
    else
      grad = fma(param, f.decay, grad);
  }
  average = fma(f.beta1, average, fma(-f.beta1, grad, grad));
  const T squared = grad * grad;
  square = fma(f.beta2, square, fma(-f.beta2, squared, squared));
}
template <class T>
__device__ T updated(const TorchAdamStep<T>& f, T param, T average, T square) {
  const T size = f.lr / f.correction1;
  return param - size * average / (sqrt(square) / f.root_correction2 + f.eps);
}

/// The same for SGD, whose kernel computes in double.
template <class T>
__device__ void torch_sgd(const SgdNumbers& n, const float* scale, T& param, T grad, T* buffer) {
  if (scale != nullptr) grad = static_cast<T>(static_cast<double>(grad) / static_cast<double>(*scale));
  if (n.maximize) grad = -grad;
  if (n.weight_decay != 0)
    grad = static_cast<T>(fma(n.weight_decay, static_cast<double>(param), static_cast<double>(grad)));
  if (buffer != nullptr) {
    const double taken = (1 - n.dampening) * static_cast<double>(grad);
    const double kept = n.is_first ? static_cast<double>(grad) : fma(n.momentum, static_cast<double>(*buffer), taken);
    *buffer = static_cast<T>(kept);
    grad = n.nesterov ? static_cast<T>(fma(n.momentum, kept, static_cast<double>(grad))) : static_cast<T>(kept);
  }
  param = static_cast<T>(fma(-n.lr, static_cast<double>(grad), static_cast<double>(param)));
}

}  // namespace levin::kernels::detail
