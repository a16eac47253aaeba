#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "levin/kernels/batch_norm_launch.h"
#include "levin/kernels/numbers.cuh"

// Every kernel reads the matrix [rows, channels] once. A thread keeps its channels for all of its rows, so what belongs
// to channels is loaded once and stays in registers. Sums are taken in two stages, in an order that depends on the
// sizes alone: results repeat bit by bit.
namespace levin::kernels::detail {
namespace {

constexpr int kWarp = 32, kWarps = kBatchNormThreads / kWarp;

__device__ float multiply_add(float a, float b, float c) {
  return fmaf(a, b, c);
}
__device__ double multiply_add(double a, double b, double c) {
  return fma(a, b, c);
}

template <class T, int V>
struct Pack {
  T values[V];
};

template <int V, class T>
__device__ Pack<T, V> load(const T* from) {
  Pack<T, V> pack;
  if constexpr (V * sizeof(T) == 16) {
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    memcpy(&pack, &bits, 16);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) pack.values[i] = from[i];
  }
  return pack;
}

template <int V, class T>
__device__ void store(T* to, const Pack<T, V>& pack) {
  if constexpr (V * sizeof(T) == 16) {
    uint4 bits;
    memcpy(&bits, &pack, 16);
    *reinterpret_cast<uint4*>(to) = bits;
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) to[i] = pack.values[i];
  }
}

// ---- numbers of channels

template <class A>
__device__ A number_at(const ChannelNumbers& numbers, int64_t channel) {
  switch (numbers.type) {
    case BatchNormType::kFloat:
      return static_cast<A>(static_cast<const float*>(numbers.data)[channel]);
    case BatchNormType::kDouble:
      return static_cast<A>(static_cast<const double*>(numbers.data)[channel]);
    case BatchNormType::kHalf:
      return static_cast<A>(widened(static_cast<const __half*>(numbers.data)[channel]));
    default:
      return static_cast<A>(widened(static_cast<const __nv_bfloat16*>(numbers.data)[channel]));
  }
}

__device__ void set_number(const ChannelNumbers& numbers, int64_t channel, double value) {
  switch (numbers.type) {
    case BatchNormType::kFloat:
      static_cast<float*>(numbers.data)[channel] = static_cast<float>(value);
      break;
    case BatchNormType::kDouble:
      static_cast<double*>(numbers.data)[channel] = value;
      break;
    case BatchNormType::kHalf:
      static_cast<__half*>(numbers.data)[channel] = __float2half_rn(static_cast<float>(value));
      break;
    default:
      static_cast<__nv_bfloat16*>(numbers.data)[channel] = __float2bfloat16_rn(static_cast<float>(value));
  }
}

/// The V numbers from `channel` on, or `missing`. Float, the usual dtype, comes in vectors.
template <class A, int V>
__device__ void load_numbers(const ChannelNumbers& numbers, int64_t channel, A missing, A (&out)[V]) {
  if (numbers.data == nullptr) {
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = missing;
    return;
  }
  if constexpr (V % 4 == 0) {
    const float* from = static_cast<const float*>(numbers.data) + channel;
    if (numbers.type == BatchNormType::kFloat && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < V; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i);
        out[i] = four.x, out[i + 1] = four.y, out[i + 2] = four.z, out[i + 3] = four.w;
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) out[i] = number_at<A>(numbers, channel + i);
}

__device__ float inverse_root(float value) {
  return 1.0f / sqrtf(value);
}
__device__ double inverse_root(double value) {
  return 1.0 / sqrt(value);
}

template <class A, int V>
__device__ void load_inverse_std(const BatchNormAffine& affine, int64_t channel, A (&out)[V]) {
  load_numbers<A, V>(affine.spread, channel, A(1), out);
  if (!affine.spread_is_variance) return;
#pragma unroll
  for (int i = 0; i < V; ++i) out[i] = inverse_root(out[i] + static_cast<A>(affine.eps));
}

/// y before residual and ReLU. Forward and backward share it: the mask of the ReLU must be the same in both.
template <class A>
__device__ A normalized(A x, A mean, A scale, A bias) {
  return multiply_add(x - mean, scale, bias);
}

// ---- where a thread stands

struct Place {
  int column;       // of the block, in vectors
  int height;       // rows of threads
  int64_t row;      // of the first tile
  int64_t channel;  // the first of the thread
  bool inside;
};

__device__ Place place_of(int columns, int width, int64_t channels) {
  Place place;
  place.column = threadIdx.x % columns;
  place.height = kBatchNormThreads / columns;
  place.row = threadIdx.x / columns;
  place.channel = (static_cast<int64_t>(blockIdx.x) * columns + place.column) * width;
  place.inside = place.channel < channels;
  return place;
}

template <class A>
struct Two {
  A first, second;
};

/// Sums two numbers of each channel over the threads of a block. Thread j has the sums of channel j of the block, for j
/// < columns * V.
template <class A, int V>
__device__ Two<A> block_sums(A (&first)[V], A (&second)[V], int columns) {
  __shared__ A sums[2][kWarps][V * kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int i = 0; i < V; ++i)
    for (int offset = columns; offset < kWarp; offset *= 2) {
      first[i] += __shfl_xor_sync(0xffffffffu, first[i], offset);
      second[i] += __shfl_xor_sync(0xffffffffu, second[i], offset);
    }
  if (lane < columns) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sums[0][warp][i * kWarp + lane] = first[i];
      sums[1][warp][i * kWarp + lane] = second[i];
    }
  }
  __syncthreads();
  Two<A> total{A(0), A(0)};
  if (threadIdx.x < columns * V) {
    const int at = threadIdx.x % V * kWarp + threadIdx.x / V;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total.first += sums[0][w][at], total.second += sums[1][w][at];
  }
  return total;
}

/// How many rows the tiles of a part have.
__device__ int64_t rows_of_part(int64_t part, int64_t parts, int64_t tile, int64_t rows) {
  const int64_t tiles = (rows + tile - 1) / tile;
  const int64_t mine = (tiles - part + parts - 1) / parts;
  return mine * tile - ((tiles - 1) % parts == part ? tiles * tile - rows : 0);
}

// ---- mean and variance

/// Sums of deviations from a number near the mean (that of the first rows of a thread), so that small variances beside
/// large means are kept. Each part gives its mean and its sum of squared deviations from it.
template <class T, int V>
__global__ void __launch_bounds__(kBatchNormThreads, kStatisticsResident)
    statistics_kernel(const T* __restrict__ x, int64_t rows, int64_t channels, int columns, Wide<T>* partial) {
  using A = Wide<T>;
  constexpr int kRows = kStatisticsUnrolled;
  const Place place = place_of(columns, V, channels);
  const int64_t tile = static_cast<int64_t>(place.height) * kRows;
  A near[V], sum[V], squares[V];
#pragma unroll
  for (int i = 0; i < V; ++i) near[i] = sum[i] = squares[i] = A(0);
  int64_t count = 0;
  for (int64_t first = blockIdx.y * tile + place.row; place.inside && first < rows; first += gridDim.y * tile) {
    Pack<T, V> packs[kRows];
    int here = 0;
#pragma unroll
    for (int k = 0; k < kRows; ++k)
      if (first + k * place.height < rows) {
        packs[k] = load<V>(x + (first + k * place.height) * channels + place.channel);
        here = k + 1;
      }
    if (count == 0) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
#pragma unroll
        for (int k = 0; k < kRows; ++k)
          if (k < here) near[i] += widened(packs[k].values[i]);
        near[i] /= static_cast<A>(here);
      }
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k)
      if (k < here) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const A deviation = widened(packs[k].values[i]) - near[i];
          sum[i] += deviation;
          squares[i] = multiply_add(deviation, deviation, squares[i]);
        }
      }
    count += here;
  }
  // The threads of a column agree on the mean of its first one, which always has rows, as the number to deviate from.
  __shared__ A pivots[V * kWarp];
  const A n = static_cast<A>(count);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (count == 0) continue;
    squares[i] -= sum[i] * (sum[i] / n);
    near[i] += sum[i] / n;
  }
  if (place.row == 0) {
#pragma unroll
    for (int i = 0; i < V; ++i) pivots[place.column * V + i] = near[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const A apart = count > 0 ? near[i] - pivots[place.column * V + i] : A(0);
    sum[i] = n * apart;
    squares[i] += sum[i] * apart;
  }
  const Two<A> total = block_sums<A, V>(sum, squares, columns);
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * columns * V + threadIdx.x;
  if (threadIdx.x >= columns * V || channel >= channels) return;
  const A all = static_cast<A>(rows_of_part(blockIdx.y, gridDim.y, tile, rows));
  const A apart = total.first / all;
  A* out = partial + blockIdx.y * 2 * channels + channel;
  out[0] = pivots[threadIdx.x] + apart;
  out[channels] = total.second - total.first * apart;
}

/// Sums two numbers over the 32 threads that have the same threadIdx.x. Afterwards warp w (threadIdx.y) has the sums of
/// column w in every lane.
__device__ Two<double> column_sums(double first, double second) {
  __shared__ double sums[2][kWarp][kWarp + 1];
  sums[0][threadIdx.y][threadIdx.x] = first;
  sums[1][threadIdx.y][threadIdx.x] = second;
  __syncthreads();
  Two<double> total{sums[0][threadIdx.x][threadIdx.y], sums[1][threadIdx.x][threadIdx.y]};
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    total.first += __shfl_xor_sync(0xffffffffu, total.first, offset);
    total.second += __shfl_xor_sync(0xffffffffu, total.second, offset);
  }
  return total;
}

template <class A>
__global__ void __launch_bounds__(kWarp* kWarp)
    finish_statistics_kernel(const A* partial, int64_t parts, int64_t tile, int64_t rows, int64_t channels,
                             A* statistics, ChannelNumbers running_mean, ChannelNumbers running_var, double momentum,
                             double eps) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  double sum = 0, squares = 0;
  if (column < channels) {
    const double pivot = partial[column];
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < parts; part += kWarp) {
      const A* from = partial + part * 2 * channels + column;
      const double n = static_cast<double>(rows_of_part(part, parts, tile, rows));
      const double apart = static_cast<double>(from[0]) - pivot;
      sum += n * apart;
      squares += static_cast<double>(from[channels]) + n * apart * apart;
    }
  }
  const Two<double> total = column_sums(sum, squares);
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.y;
  if (threadIdx.x != 0 || channel >= channels) return;
  const double n = static_cast<double>(rows), apart = total.first / n;
  const double mean = static_cast<double>(partial[channel]) + apart;
  double variance = total.second / n - apart * apart;
  if (variance < 0) variance = 0;
  assign(statistics[channel], mean);
  assign(statistics[channels + channel], 1.0 / sqrt(variance + eps));
  if (running_mean.data != nullptr)
    set_number(running_mean, channel, (1 - momentum) * number_at<double>(running_mean, channel) + momentum * mean);
  if (running_var.data != nullptr)
    set_number(running_var, channel,
               (1 - momentum) * number_at<double>(running_var, channel) + momentum * (variance * (n / (n - 1))));
}

// ---- forward

/// From the last row to the first: the rows that the pass before has read last are still in the cache.
template <class T, int V, bool kResidual>
__global__ void __launch_bounds__(kBatchNormThreads, kStatisticsResident)
    normalize_rows_kernel(const T* __restrict__ x, const T* __restrict__ residual, T* __restrict__ y, int64_t rows,
                          int64_t channels, int columns, const BatchNormAffine affine, const bool relu) {
  using A = Wide<T>;
  constexpr int kRows = kBackwardUnrolled;
  const Place place = place_of(columns, V, channels);
  if (!place.inside) return;
  const int64_t tile = static_cast<int64_t>(place.height) * kRows;
  A mean[V], scale[V], bias[V], weight[V];
  load_numbers<A, V>(affine.mean, place.channel, A(0), mean);
  load_inverse_std<A, V>(affine, place.channel, scale);
  load_numbers<A, V>(affine.weight, place.channel, A(1), weight);
  load_numbers<A, V>(affine.bias, place.channel, A(0), bias);
#pragma unroll
  for (int i = 0; i < V; ++i) scale[i] *= weight[i];
  const int64_t tiles = (rows + tile - 1) / tile;
  for (int64_t t = tiles - 1 - blockIdx.y; t >= 0; t -= gridDim.y) {
    const int64_t first = t * tile + place.row;
    Pack<T, V> in[kRows], added[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = first + k * place.height;
      if (row >= rows) continue;
      in[k] = load<V>(x + row * channels + place.channel);
      if constexpr (kResidual) added[k] = load<V>(residual + row * channels + place.channel);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = first + k * place.height;
      if (row >= rows) continue;
      Pack<T, V> out;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        A value = normalized<A>(widened(in[k].values[i]), mean[i], scale[i], bias[i]);
        if constexpr (kResidual) value += widened(added[k].values[i]);
        if (relu && value <= A(0)) value = A(0);  // what is no number stays one
        assign(out.values[i], value);
      }
      store<V>(y + row * channels + place.channel, out);
    }
  }
}

// ---- backward

/// What the ReLU lets through of a gradient.
template <class T, ReluMask kMask>
__device__ Wide<T> masked_gradient(Wide<T> dy, Wide<T> y, Wide<T> x, Wide<T> mean, Wide<T> scale, Wide<T> bias) {
  if constexpr (kMask == ReluMask::kOutput) return y <= Wide<T>(0) ? Wide<T>(0) : dy;
  if constexpr (kMask == ReluMask::kInput) {
    T rounded;  // as forward has rounded it: tiny halves are zero
    assign(rounded, normalized<Wide<T>>(x, mean, scale, bias));
    return widened(rounded) <= Wide<T>(0) ? Wide<T>(0) : dy;
  }
  return dy;
}

template <class T, int V, ReluMask kMask>
__global__ void __launch_bounds__(kBatchNormThreads, kBackwardResident)
    backward_sums_kernel(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ y,
                         T* __restrict__ masked, int64_t rows, int64_t channels, int columns,
                         const BatchNormAffine affine, Wide<T>* partial) {
  using A = Wide<T>;
  constexpr int kRows = kBackwardUnrolled;
  const Place place = place_of(columns, V, channels);
  const int64_t tile = static_cast<int64_t>(place.height) * kRows;
  A sum[V], product[V], mean[V], scale[V], bias[V];
#pragma unroll
  for (int i = 0; i < V; ++i) sum[i] = product[i] = mean[i] = scale[i] = bias[i] = A(0);
  if (place.inside) {
    load_numbers<A, V>(affine.mean, place.channel, A(0), mean);
    if constexpr (kMask == ReluMask::kInput) {
      A weight[V];
      load_inverse_std<A, V>(affine, place.channel, scale);
      load_numbers<A, V>(affine.weight, place.channel, A(1), weight);
      load_numbers<A, V>(affine.bias, place.channel, A(0), bias);
#pragma unroll
      for (int i = 0; i < V; ++i) scale[i] *= weight[i];
    }
  }
  for (int64_t first = blockIdx.y * tile + place.row; place.inside && first < rows; first += gridDim.y * tile) {
    Pack<T, V> grads[kRows], ins[kRows], outs[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = first + k * place.height;
      if (row >= rows) continue;
      grads[k] = load<V>(dy + row * channels + place.channel);
      ins[k] = load<V>(x + row * channels + place.channel);
      if constexpr (kMask == ReluMask::kOutput) outs[k] = load<V>(y + row * channels + place.channel);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = first + k * place.height;
      if (row >= rows) continue;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A in = widened(ins[k].values[i]);
        const A out = kMask == ReluMask::kOutput ? A(widened(outs[k].values[i])) : A(0);
        const A grad = masked_gradient<T, kMask>(widened(grads[k].values[i]), out, in, mean[i], scale[i], bias[i]);
        sum[i] += grad;
        product[i] = multiply_add(in - mean[i], grad, product[i]);
        if constexpr (kMask != ReluMask::kNone) assign(grads[k].values[i], grad);
      }
      if constexpr (kMask != ReluMask::kNone)
        if (masked != nullptr) store<V>(masked + row * channels + place.channel, grads[k]);
    }
  }
  const Two<A> total = block_sums<A, V>(sum, product, columns);
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * columns * V + threadIdx.x;
  if (threadIdx.x >= columns * V || channel >= channels) return;
  A* out = partial + blockIdx.y * 2 * channels + channel;
  out[0] = total.first;
  out[channels] = total.second;
}

template <class A>
__global__ void __launch_bounds__(kWarp* kWarp)
    finish_backward_kernel(const A* partial, int64_t parts, int64_t channels, A* sums, const BatchNormAffine affine,
                           ChannelNumbers grad_weight, ChannelNumbers grad_bias) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  double sum = 0, product = 0;
  if (column < channels) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < parts; part += kWarp) {
      const A* from = partial + part * 2 * channels + column;
      sum += static_cast<double>(from[0]);
      product += static_cast<double>(from[channels]);
    }
  }
  const Two<double> total = column_sums(sum, product);
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.y;
  if (threadIdx.x != 0 || channel >= channels) return;
  assign(sums[channel], total.first);
  assign(sums[channels + channel], total.second);
  A inverse_std[1];
  load_inverse_std<A, 1>(affine, channel, inverse_std);
  if (grad_weight.data != nullptr) set_number(grad_weight, channel, total.second * inverse_std[0]);
  if (grad_bias.data != nullptr) set_number(grad_bias, channel, total.first);
}

template <class T, int V, ReluMask kMask>
__global__ void __launch_bounds__(kBatchNormThreads, kBackwardResident)
    backward_input_kernel(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ y,
                          T* __restrict__ masked, T* __restrict__ dx, int64_t rows, int64_t channels, int columns,
                          const BatchNormAffine affine, const Wide<T>* __restrict__ sums) {
  using A = Wide<T>;
  constexpr int kRows = kBackwardUnrolled;
  const Place place = place_of(columns, V, channels);
  if (!place.inside) return;
  const int64_t tile = static_cast<int64_t>(place.height) * kRows;
  const bool reads_x = sums != nullptr || kMask == ReluMask::kInput;
  // dx = scale dy + constant + slope (x - mean)
  A mean[V], scale[V], bias[V], constant[V], slope[V];
  load_numbers<A, V>(affine.mean, place.channel, A(0), mean);
  load_inverse_std<A, V>(affine, place.channel, scale);
  load_numbers<A, V>(affine.weight, place.channel, A(1), bias);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const A inverse_std = scale[i];
    scale[i] *= bias[i];
    constant[i] = slope[i] = A(0);
    if (sums == nullptr) continue;
    const A n = static_cast<A>(rows);
    constant[i] = -scale[i] * (sums[place.channel + i] / n);
    slope[i] = -scale[i] * inverse_std * inverse_std * (sums[channels + place.channel + i] / n);
  }
  if constexpr (kMask == ReluMask::kInput) load_numbers<A, V>(affine.bias, place.channel, A(0), bias);
  const int64_t tiles = (rows + tile - 1) / tile;
  for (int64_t t = tiles - 1 - blockIdx.y; t >= 0; t -= gridDim.y) {
    const int64_t first = t * tile + place.row;
    Pack<T, V> grads[kRows], ins[kRows], outs[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = first + k * place.height;
      if (row >= rows) continue;
      grads[k] = load<V>(dy + row * channels + place.channel);
      if (reads_x) ins[k] = load<V>(x + row * channels + place.channel);
      if constexpr (kMask == ReluMask::kOutput) outs[k] = load<V>(y + row * channels + place.channel);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = first + k * place.height;
      if (row >= rows) continue;
      Pack<T, V> result;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A in = reads_x ? A(widened(ins[k].values[i])) : mean[i];
        const A out = kMask == ReluMask::kOutput ? A(widened(outs[k].values[i])) : A(0);
        const A grad = masked_gradient<T, kMask>(widened(grads[k].values[i]), out, in, mean[i], scale[i], bias[i]);
        assign(result.values[i], multiply_add(in - mean[i], slope[i], multiply_add(grad, scale[i], constant[i])));
        if constexpr (kMask != ReluMask::kNone) assign(grads[k].values[i], grad);
      }
      store<V>(dx + row * channels + place.channel, result);
      if constexpr (kMask != ReluMask::kNone)
        if (masked != nullptr) store<V>(masked + row * channels + place.channel, grads[k]);
    }
  }
}

// ---- launches

template <class T>
struct Type {
  using type = T;
};
template <int V>
struct Width {
  static constexpr int value = V;
};
template <ReluMask kMask>
struct Mask {
  static constexpr ReluMask value = kMask;
};

/// Calls f(Type, Width) for the dtype of the matrix.
template <class F>
int with_type(const BatchNormShape& shape, const F& f) {
  const auto call = [&](auto type, auto vector) {
    if (shape.vectors)
      f(type, vector);
    else
      f(type, Width<1>());
  };
  switch (shape.type) {
    case BatchNormType::kFloat:
      call(Type<float>(), Width<4>());
      break;
    case BatchNormType::kDouble:
      call(Type<double>(), Width<2>());
      break;
    case BatchNormType::kHalf:
      call(Type<__half>(), Width<8>());
      break;
    case BatchNormType::kBFloat16:
      call(Type<__nv_bfloat16>(), Width<8>());
      break;
  }
  return static_cast<int>(cudaGetLastError());
}

template <class F>
void with_mask(ReluMask mask, const F& f) {
  switch (mask) {
    case ReluMask::kNone:
      f(Mask<ReluMask::kNone>());
      break;
    case ReluMask::kOutput:
      f(Mask<ReluMask::kOutput>());
      break;
    case ReluMask::kInput:
      f(Mask<ReluMask::kInput>());
      break;
  }
}

dim3 grid_of(const BatchNormPlan& plan) {
  return dim3(static_cast<unsigned>(plan.strips), static_cast<unsigned>(plan.parts));
}

unsigned finishing_blocks(int64_t channels) {
  return static_cast<unsigned>((channels + kWarp - 1) / kWarp);
}

}  // namespace

int launch_batch_norm_statistics(const StatisticsLaunch& launch, CUstream_st* stream) {
  const auto& shape = launch.shape;
  const auto plan = plan_statistics(shape);
  return with_type(shape, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    auto* partial = static_cast<Wide<T>*>(launch.partial);
    statistics_kernel<T, decltype(width)::value><<<grid_of(plan), kBatchNormThreads, 0, stream>>>(
        static_cast<const T*>(launch.x), shape.rows, shape.channels, plan.columns, partial);
    finish_statistics_kernel<Wide<T>><<<finishing_blocks(shape.channels), dim3(kWarp, kWarp), 0, stream>>>(
        partial, plan.parts, plan.tile, shape.rows, shape.channels, static_cast<Wide<T>*>(launch.statistics),
        launch.running_mean, launch.running_var, launch.momentum, launch.eps);
  });
}

int launch_normalize_rows(const NormalizeRowsLaunch& launch, CUstream_st* stream) {
  const auto& shape = launch.shape;
  const auto plan = plan_batch_norm(shape, kStatisticsResident, kBackwardUnrolled);
  return with_type(shape, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    constexpr int V = decltype(width)::value;
    const auto* x = static_cast<const T*>(launch.x);
    auto* y = static_cast<T*>(launch.y);
    if (launch.residual != nullptr)
      normalize_rows_kernel<T, V, true>
          <<<grid_of(plan), kBatchNormThreads, 0, stream>>>(x, static_cast<const T*>(launch.residual), y, shape.rows,
                                                            shape.channels, plan.columns, launch.affine, launch.relu);
    else
      normalize_rows_kernel<T, V, false><<<grid_of(plan), kBatchNormThreads, 0, stream>>>(
          x, nullptr, y, shape.rows, shape.channels, plan.columns, launch.affine, launch.relu);
  });
}

int launch_batch_norm_backward_sums(const BatchNormBackwardLaunch& launch, CUstream_st* stream) {
  const auto& shape = launch.shape;
  const auto plan = plan_backward(shape);
  return with_type(shape, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    auto* partial = static_cast<Wide<T>*>(launch.partial);
    with_mask(launch.mask, [&](auto mask) {
      backward_sums_kernel<T, decltype(width)::value, decltype(mask)::value>
          <<<grid_of(plan), kBatchNormThreads, 0, stream>>>(
              static_cast<const T*>(launch.dy), static_cast<const T*>(launch.x), static_cast<const T*>(launch.y),
              static_cast<T*>(launch.masked), shape.rows, shape.channels, plan.columns, launch.affine, partial);
    });
    finish_backward_kernel<Wide<T>><<<finishing_blocks(shape.channels), dim3(kWarp, kWarp), 0, stream>>>(
        partial, plan.parts, shape.channels, static_cast<Wide<T>*>(launch.sums), launch.affine, launch.grad_weight,
        launch.grad_bias);
  });
}

int launch_batch_norm_backward_input(const BatchNormBackwardLaunch& launch, CUstream_st* stream) {
  const auto& shape = launch.shape;
  const auto plan = plan_backward(shape);
  return with_type(shape, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    with_mask(launch.mask, [&](auto mask) {
      backward_input_kernel<T, decltype(width)::value, decltype(mask)::value>
          <<<grid_of(plan), kBatchNormThreads, 0, stream>>>(
              static_cast<const T*>(launch.dy), static_cast<const T*>(launch.x), static_cast<const T*>(launch.y),
              static_cast<T*>(launch.masked), static_cast<T*>(launch.dx), shape.rows, shape.channels, plan.columns,
              launch.affine, static_cast<const Wide<T>*>(launch.sums));
    });
  });
}

}  // namespace levin::kernels::detail
