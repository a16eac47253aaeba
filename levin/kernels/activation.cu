#include "levin/kernels/activation_device.cuh"
#include "levin/kernels/activation_launch.h"
#include "levin/kernels/packs.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kThreads = 256, kPacks = 4;  // packs of a thread that are on their way together

// ---- one pass over memory

/// What is done with the numbers of one element.
template <ActivationKind kind, bool backward, class T, class A>
__device__ __forceinline__ void element(A x, A second, A grad, A& out, A& second_out) {
  if constexpr (kind == ActivationKind::kGatedSilu) {
    const A s = sigmoid<T>(x);
    if constexpr (!backward) {
      out = x * s * second;
    } else {
      out = grad * second * (s * (1 + x * (1 - s)));
      second_out = grad * x * s;
    }
  } else if constexpr (!backward) {
    out = activated<kind, T>(x);
  } else if constexpr (kind == ActivationKind::kRelu) {
    out = x <= 0 ? A(0) : grad;
  } else {
    out = grad * derivative<kind, T>(x);
  }
}

/// V neighbours.
template <ActivationKind kind, bool backward, class T, int V>
__device__ __forceinline__ void neighbours(const ActivationPointers& pointers, int64_t at, const Pack<T, V>& first,
                                           const Pack<T, V>& second, const Pack<T, V>& grad) {
  using A = Wide<T>;
  A x[V], y[V] = {}, g[V] = {}, out[V], second_out[V] = {};
  unpack<T, V>(first, x);
  if constexpr (kind == ActivationKind::kGatedSilu) unpack<T, V>(second, y);
  if constexpr (backward) unpack<T, V>(grad, g);
#pragma unroll
  for (int k = 0; k < V; ++k) element<kind, backward, T>(x[k], y[k], g[k], out[k], second_out[k]);
  store_packed<T, V>(pointers.out, at, out);
  if constexpr (kind == ActivationKind::kGatedSilu && backward) store_packed<T, V>(pointers.second_out, at, second_out);
}

template <ActivationKind kind, bool backward, class T>
__global__ void __launch_bounds__(kThreads) activation_kernel(const ActivationPointers pointers) {
  constexpr int V = 16 / sizeof(T), kTile = kThreads * kPacks * V;
  constexpr bool gated = kind == ActivationKind::kGatedSilu;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTile;
  const int t = static_cast<int>(threadIdx.x);
  if (pointers.aligned && begin + kTile <= pointers.numel) {
    Pack<T, V> first[kPacks], second[kPacks] = {}, grad[kPacks] = {};
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int64_t at = begin + (i * kThreads + t) * V;
      first[i] = load<T, V>(pointers.first, at);
      if constexpr (gated) second[i] = load<T, V>(pointers.second, at);
      if constexpr (backward) grad[i] = load<T, V>(pointers.grad, at);
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
      neighbours<kind, backward, T, V>(pointers, begin + (i * kThreads + t) * V, first[i], second[i], grad[i]);
    return;
  }
  const int64_t end = begin + kTile < pointers.numel ? begin + kTile : pointers.numel;
  for (int64_t at = begin + t; at < end; at += kThreads) {
    Pack<T, 1> second{}, grad{};
    if constexpr (gated) second = load<T, 1>(pointers.second, at);
    if constexpr (backward) grad = load<T, 1>(pointers.grad, at);
    neighbours<kind, backward, T, 1>(pointers, at, load<T, 1>(pointers.first, at), second, grad);
  }
}

template <ActivationKind kind, bool backward, class T>
void launch_typed(const ActivationPointers& pointers, cudaStream_t stream) {
  constexpr int64_t kTile = kThreads * kPacks * (16 / static_cast<int64_t>(sizeof(T)));
  const auto blocks = static_cast<unsigned>((pointers.numel + kTile - 1) / kTile);
  activation_kernel<kind, backward, T><<<blocks, kThreads, 0, stream>>>(pointers);
}

template <ActivationKind kind, bool backward>
void launch_kind(const ActivationPointers& pointers, cudaStream_t stream) {
  switch (pointers.type) {
    case NumberType::kFloat:
      return launch_typed<kind, backward, float>(pointers, stream);
    case NumberType::kDouble:
      return launch_typed<kind, backward, double>(pointers, stream);
    case NumberType::kHalf:
      return launch_typed<kind, backward, __half>(pointers, stream);
    case NumberType::kBFloat16:
      return launch_typed<kind, backward, __nv_bfloat16>(pointers, stream);
    case NumberType::kNone:
      return;
  }
}

template <bool backward>
void launch_any(const ActivationPointers& pointers, ActivationKind kind, cudaStream_t stream) {
  switch (kind) {
    case ActivationKind::kGelu:
      return launch_kind<ActivationKind::kGelu, backward>(pointers, stream);
    case ActivationKind::kGeluTanh:
      return launch_kind<ActivationKind::kGeluTanh, backward>(pointers, stream);
    case ActivationKind::kRelu:
      return launch_kind<ActivationKind::kRelu, backward>(pointers, stream);
    case ActivationKind::kSilu:
      return launch_kind<ActivationKind::kSilu, backward>(pointers, stream);
    case ActivationKind::kGatedSilu:
      return launch_kind<ActivationKind::kGatedSilu, backward>(pointers, stream);
  }
}

}  // namespace

int launch_activation(const ActivationPointers& pointers, ActivationKind kind, bool backward, CUstream_st* stream) {
  if (backward)
    launch_any<true>(pointers, kind, stream);
  else
    launch_any<false>(pointers, kind, stream);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
