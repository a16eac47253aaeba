#pragma once

#include "levin/kernels/norm/batch_norm_launch.h"
#include "levin/kernels/packs.cuh"

/// What the kernels of batch norm share. A thread keeps its channels for all of its rows, so what belongs to channels
/// stays in registers. A first kernel leaves one pair of sums for each part of the rows and each channel. Every block
/// of the second one adds up those of its own channels, so no kernel stands between them. The order of sums depends on
/// the sizes alone: results repeat bit by bit.
namespace levin::kernels::detail {

constexpr int kWarp = 32;

/// The most channels of a block whose threads have V each.
template <int V>
constexpr int kStrip = V* strip_columns(V > 1);

__device__ __forceinline__ float multiply_add(float a, float b, float c) {
  return fmaf(a, b, c);
}
__device__ __forceinline__ double multiply_add(double a, double b, double c) {
  return fma(a, b, c);
}

/// y before residual and ReLU, of x - mean. Forward and backward share it: the mask of the ReLU must be the same in
/// both.
template <class A>
__device__ __forceinline__ A normalized(A deviation, A scale, A bias) {
  return multiply_add(deviation, scale, bias);
}

/// Rounded to the dtype, positive numbers up to this are zero.
template <class T>
constexpr float kVanishes = 0;
template <>
constexpr float kVanishes<__half> = 0x1p-25f;
template <>
constexpr float kVanishes<__nv_bfloat16> = 0x1p-134f;

/// Whether the ReLU lets the gradient of a sum through. Numbers do not pass that are zero once they are rounded; what
/// is no number does.
template <class T>
__device__ __forceinline__ bool passes(Wide<T> value) {
  return !(value <= Wide<T>(kVanishes<T>));
}

template <class A>
struct SumPair {
  A first, second;
};

// ---- where a thread stands

struct BatchNormPlace {
  int column;       // of the block, in vectors
  int strip;        // channels of the block
  int64_t row;      // its first
  int64_t step;     // to its next row
  int64_t channel;  // its first
  bool inside;
};

template <int kThreads>
__device__ __forceinline__ BatchNormPlace batch_norm_place(int columns, int width, int64_t channels) {
  const int height = kThreads / columns;
  BatchNormPlace place;
  place.column = static_cast<int>(threadIdx.x) % columns;
  place.strip = columns * width;
  place.row = static_cast<int64_t>(blockIdx.y) * height + threadIdx.x / columns;
  place.step = static_cast<int64_t>(gridDim.y) * height;
  place.channel = (static_cast<int64_t>(blockIdx.x) * columns + place.column) * width;
  place.inside = place.channel < channels;
  return place;
}

// ---- numbers of channels

template <class A>
__device__ __forceinline__ A number_or(const ChannelNumbers& numbers, int64_t channel, A missing) {
  return numbers.data == nullptr ? missing : load_number<A>(numbers.data, numbers.type, channel);
}

__device__ __forceinline__ float inverse_root(float value) {
  return 1.0f / sqrtf(value);
}
__device__ __forceinline__ double inverse_root(double value) {
  return 1.0 / sqrt(value);
}

template <class A>
__device__ __forceinline__ A mean_of(const BatchNormAffine& affine, int64_t channel) {
  return load_number<A>(affine.mean.data, affine.mean.type, channel);
}

template <class A>
__device__ __forceinline__ A inverse_std_of(const BatchNormAffine& affine, int64_t channel) {
  const A spread = load_number<A>(affine.spread.data, affine.spread.type, channel);
  // As forward does it: the mask of the ReLU depends on the last bit.
  return affine.spread_is_variance ? inverse_root(spread + static_cast<A>(affine.eps)) : spread;
}

/// How x becomes y before residual and ReLU, for the channels of a thread.
template <class A, int V>
struct ChannelMap {
  A mean[V], scale[V], bias[V];
};

/// The same for the channels of a block, in shared memory.
template <class A, int V>
struct ChannelTable {
  A mean[kStrip<V>], scale[kStrip<V>], bias[kStrip<V>];

  __device__ __forceinline__ ChannelMap<A, V> of(int column) const {
    ChannelMap<A, V> map;
#pragma unroll
    for (int i = 0; i < V; ++i)
      map.mean[i] = mean[column * V + i], map.scale[i] = scale[column * V + i], map.bias[i] = bias[column * V + i];
    return map;
  }
};

// ---- sums

/// Sums two numbers of each channel over the threads of a block. Thread j has the sums of channel j of the block, for j
/// < columns * V.
template <int kThreads, class A, int V>
__device__ __forceinline__ SumPair<A> block_sums(A (&first)[V], A (&second)[V], int columns) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ A sums[2][kWarps][kStrip<V>];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int i = 0; i < V; ++i)
    for (int offset = columns; offset < kWarp; offset *= 2) {
      first[i] += __shfl_xor_sync(0xffffffffu, first[i], offset);
      second[i] += __shfl_xor_sync(0xffffffffu, second[i], offset);
    }
  if (lane < columns) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sums[0][warp][i * columns + lane] = first[i];
      sums[1][warp][i * columns + lane] = second[i];
    }
  }
  __syncthreads();
  SumPair<A> total{A(0), A(0)};
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < columns * V) {
    const int at = thread % V * columns + thread / V;
#pragma unroll 8
    for (int w = 0; w < kWarps; ++w) total.first += sums[0][w][at], total.second += sums[1][w][at];
  }
  return total;
}

/// Sums pairs over parts; `at(part)` gives those of the channel `threadIdx.x % strip` of the block. Thread j has the
/// sums of channel j, for j < strip.
template <int kThreads, class F>
__device__ __forceinline__ SumPair<double> part_sums(int parts, int strip, const F& at) {
  __shared__ SumPair<double> sums[kThreads];
  const int thread = static_cast<int>(threadIdx.x), groups = kThreads / strip;
  SumPair<double> total{0, 0};
  if (thread < groups * strip) {
#pragma unroll 8
    for (int part = thread / strip; part < parts; part += groups) {
      const SumPair<double> next = at(part);
      total.first += next.first, total.second += next.second;
    }
  }
  sums[thread] = total;
  __syncthreads();
  if (thread < strip)
    for (int group = 1; group < groups; ++group) {
      total.first += sums[group * strip + thread].first;
      total.second += sums[group * strip + thread].second;
    }
  return total;
}

// ---- launches

template <class T>
struct TypeOf {
  using type = T;
};
template <int V>
struct WidthOf {
  static constexpr int value = V;
};

/// Calls f(TypeOf, WidthOf) for the dtype of the matrix.
template <class F>
void with_batch_norm_type(const BatchNormShape& shape, const F& f) {
  const auto call = [&](auto type, auto vector) {
    if (shape.vectors)
      f(type, vector);
    else
      f(type, WidthOf<1>());
  };
  switch (shape.type) {
    case NumberType::kFloat:
      return call(TypeOf<float>(), WidthOf<4>());
    case NumberType::kDouble:
      return call(TypeOf<double>(), WidthOf<2>());
    case NumberType::kHalf:
      return call(TypeOf<__half>(), WidthOf<8>());
    case NumberType::kBFloat16:
      return call(TypeOf<__nv_bfloat16>(), WidthOf<8>());
    case NumberType::kNone:
      return;
  }
}

inline dim3 grid_of(const BatchNormPlan& plan) {
  return dim3(static_cast<unsigned>(plan.strips), static_cast<unsigned>(plan.parts));
}

}  // namespace levin::kernels::detail
