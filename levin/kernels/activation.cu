#include "levin/kernels/activation_device.cuh"
#include "levin/kernels/activation_launch.h"
#include "levin/kernels/early_start.cuh"
#include "levin/kernels/packs.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kThreads = 256, kPacks = 4;  // packs of a thread that are on their way together
constexpr unsigned kFewBlocks = 128;

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
  let_next_start();
  wait_for_previous();
  constexpr int V = 16 / sizeof(T), kTile = kThreads * kPacks * V;
  constexpr bool gated = kind == ActivationKind::kGatedSilu;
  const int64_t begin = static_cast<int64_t>(block_from_end()) * kTile;
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
  launch_early(activation_kernel<kind, backward, T>, {blocks, kThreads, 0, blocks <= kFewBlocks}, stream, pointers);
}

template <ActivationKind kind, bool backward>
int launch_kind(const ActivationPointers& pointers, cudaStream_t stream) {
  switch (pointers.type) {
    case NumberType::kFloat:
      launch_typed<kind, backward, float>(pointers, stream);
      break;
    case NumberType::kDouble:
      launch_typed<kind, backward, double>(pointers, stream);
      break;
    case NumberType::kHalf:
      launch_typed<kind, backward, __half>(pointers, stream);
      break;
    case NumberType::kBFloat16:
      launch_typed<kind, backward, __nv_bfloat16>(pointers, stream);
      break;
    case NumberType::kNone:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

template <bool backward>
int launch_any(const ActivationPointers& pointers, ActivationKind kind, cudaStream_t stream) {
  switch (kind) {
#define LEVIN_CASE(name)     \
  case ActivationKind::name: \
    return launch_kind<ActivationKind::name, backward>(pointers, stream);
    LEVIN_ACTIVATIONS(LEVIN_CASE)
    LEVIN_CASE(kGatedSilu)
#undef LEVIN_CASE
  }
  return cudaErrorInvalidValue;
}

// ---- backward with sums

constexpr int kAcross = 32, kDown = 8, kAhead = 4, kPack = 8;  // four blocks of a multiprocessor fill it

/// A block goes through 256 columns of part blockIdx.y of the rows.
template <ActivationKind kind, class T>
__global__ void __launch_bounds__(kAcross* kDown, 4) activation_sums_kernel(const ActivationSums given) {
  __shared__ float shared[kDown][kAcross * kPack];
  let_next_start();
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kAcross * kPack, column = first + x * kPack;
  const int64_t per_part = (given.rows + given.parts - 1) / given.parts, begin = per_part * blockIdx.y;
  const int64_t end = begin + per_part < given.rows ? begin + per_part : given.rows;
  float total[kPack] = {};
  const auto add = [&](const Pack<T, kPack>& at, const Pack<T, kPack>& grad, int64_t row) {
    float values[kPack], grads[kPack], out[kPack], none = 0;
    unpack<T, kPack>(at, values);
    unpack<T, kPack>(grad, grads);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      element<kind, true, T>(values[k], 0.0f, grads[k], out[k], none);
      total[k] += out[k];
    }
    store_packed<T, kPack>(given.out, row * given.columns + column, out);
  };
  if (column < given.columns) {
    int64_t row = begin + y;
    for (; row + (kAhead - 1) * kDown < end; row += kAhead * kDown) {
      Pack<T, kPack> at[kAhead], grad[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        at[i] = load<T, kPack>(given.x, (row + i * kDown) * given.columns + column);
        grad[i] = load<T, kPack>(given.grad, (row + i * kDown) * given.columns + column);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) add(at[i], grad[i], row + i * kDown);
    }
    for (; row < end; row += kDown)
      add(load<T, kPack>(given.x, row * given.columns + column),
          load<T, kPack>(given.grad, row * given.columns + column), row);
  }
  // Neighbours in shared memory are the neighbours of a warp: no two of its threads meet in a bank.
#pragma unroll
  for (int k = 0; k < kPack; ++k) shared[y][k * kAcross + x] = total[k];
  __syncthreads();
  const int c = y * kAcross + x;
  float all = 0;
#pragma unroll
  for (int each = 0; each < kDown; ++each) all += shared[each][c];
  const int64_t at = first + (c % kAcross) * kPack + c / kAcross;
  if (at < given.columns) given.partials[blockIdx.y * given.columns + at] = all;
}

template <class T>
int launch_sums(const ActivationSums& sums, ActivationKind kind, cudaStream_t stream) {
  static_assert(kAcross * kPack == kAcross * kDown, "a thread for each sum of a block");
  const dim3 grid(static_cast<unsigned>((sums.columns + kAcross * kPack - 1) / (kAcross * kPack)),
                  static_cast<unsigned>(sums.parts)),
      block(kAcross, kDown);
  switch (kind) {
#define LEVIN_CASE(name)                                                               \
  case ActivationKind::name:                                                           \
    activation_sums_kernel<ActivationKind::name, T><<<grid, block, 0, stream>>>(sums); \
    break;
    LEVIN_ACTIVATIONS(LEVIN_CASE)
#undef LEVIN_CASE
    case ActivationKind::kGatedSilu:
      return cudaErrorInvalidValue;
  }
  launch_finish(sums.partials, sums.parts, sums.columns, {{sums.to}, {sums.to_type}}, stream);
  return cudaGetLastError();
}

}  // namespace

int launch_activation_sums(const ActivationSums& sums, ActivationKind kind, CUstream_st* stream) {
  if (!is_activation(static_cast<int64_t>(kind))) return cudaErrorInvalidValue;
  if (sums.type == NumberType::kHalf) return launch_sums<__half>(sums, kind, stream);
  if (sums.type == NumberType::kBFloat16) return launch_sums<__nv_bfloat16>(sums, kind, stream);
  return cudaErrorInvalidValue;
}

int launch_activation(const ActivationPointers& pointers, ActivationKind kind, bool backward, CUstream_st* stream) {
  return backward ? launch_any<true>(pointers, kind, stream) : launch_any<false>(pointers, kind, stream);
}

}  // namespace levin::kernels::detail
