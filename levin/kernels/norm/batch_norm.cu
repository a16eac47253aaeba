#include <cuda_runtime.h>

#include "levin/kernels/norm/batch_norm_device.cuh"

namespace levin::kernels::detail {
namespace {

__device__ __forceinline__ int64_t rows_of(const BatchNormParts& parts, int part) {
  const int64_t tiles = parts.tiles + (part < parts.longer ? 1 : 0);
  return tiles * parts.height - (part == parts.last ? parts.missing : 0);
}

/// Sums of deviations from the first number of a thread, so that small variances beside large means are kept. Each part
/// gives its mean and its sum of squared deviations from it.
template <class T, int V>
__global__ void __launch_bounds__(kStatisticsLoop.threads, kStatisticsLoop.resident)
    statistics_kernel(const T* __restrict__ x, int64_t rows, int64_t channels, int columns,
                      const __grid_constant__ BatchNormParts parts, Wide<T>* partial) {
  using A = Wide<T>;
  constexpr int kThreads = kStatisticsLoop.threads, kRows = kStatisticsLoop.unrolled;
  const auto place = batch_norm_place<kThreads>(columns, V, channels);
  A near[V], sum[V], squares[V];
#pragma unroll
  for (int i = 0; i < V; ++i) near[i] = sum[i] = squares[i] = A(0);
  int count = 0;
  for (int64_t first = place.row; place.inside && first < rows; first += kRows * place.step) {
    Pack<T, V> packs[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = first + k * place.step;
      if (row < rows) packs[k] = load<T, V>(x, row * channels + place.channel);
    }
    if (count == 0) unpack<T, V>(packs[0], near);
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      if (first + k * place.step >= rows) continue;
      A values[V];
      unpack<T, V>(packs[k], values);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A deviation = values[i] - near[i];
        sum[i] += deviation;
        squares[i] = multiply_add(deviation, deviation, squares[i]);
      }
      ++count;
    }
  }
  // The threads of a column agree on the mean of its first one, which always has rows, as the number to deviate from.
  __shared__ A pivots[kStrip<V>];
  const A n = static_cast<A>(count), inverse = count > 0 ? A(1) / n : A(0);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const A apart = sum[i] * inverse;
    squares[i] -= sum[i] * apart;
    near[i] += apart;
  }
  if (static_cast<int>(threadIdx.x) < columns) {
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
  const SumPair<A> total = block_sums<kThreads, A, V>(sum, squares, columns);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * place.strip + thread;
  if (thread >= place.strip || channel >= channels) return;
  const A apart = total.first / static_cast<A>(rows_of(parts, static_cast<int>(blockIdx.y)));
  A* out = partial + blockIdx.y * 2 * channels + channel;
  out[0] = pivots[thread] + apart;
  out[channels] = total.second - total.first * apart;
}

/// Mean and variance of the batch, for the channel of each of the first `strip` threads.
template <int kThreads, class A>
__device__ SumPair<double> finish_statistics(const BatchNormLaunch& launch, const BatchNormParts& parts, int strip,
                                             int64_t channel, double inverse_rows) {
  const int64_t channels = launch.shape.channels;
  const auto* partial = static_cast<const A*>(launch.partial);
  const bool inside = channel < channels;
  const double pivot = inside ? static_cast<double>(partial[channel]) : 0;
  const SumPair<double> total = part_sums<kThreads>(inside ? parts.parts : 0, strip, [&](int part) {
    const A* from = partial + part * 2 * channels + channel;
    const double n = static_cast<double>(rows_of(parts, part)), apart = static_cast<double>(from[0]) - pivot;
    return SumPair<double>{n * apart, static_cast<double>(from[channels]) + n * apart * apart};
  });
  const double apart = total.first * inverse_rows;
  const double variance = total.second * inverse_rows - apart * apart;
  return {pivot + apart, variance < 0 ? 0 : variance};
}

/// From the last row to the first: the rows that the pass before has read last are still in the cache.
template <class T, int V, bool kResidual>
__global__ void __launch_bounds__(kNormalizeLoop.threads, kNormalizeLoop.resident)
    normalize_rows_kernel(const __grid_constant__ BatchNormLaunch launch, int columns,
                          const __grid_constant__ BatchNormParts parts, double inverse_rows, double unbiased) {
  using A = Wide<T>;
  constexpr int kThreads = kNormalizeLoop.threads, kRows = kNormalizeLoop.unrolled;
  const int64_t rows = launch.shape.rows, channels = launch.shape.channels;
  const auto place = batch_norm_place<kThreads>(columns, V, channels);
  __shared__ ChannelTable<A, V> table;
  {
    // What waits for nothing is read before the sums are, and written after the others need not wait.
    const auto& affine = launch.affine;
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t channel = static_cast<int64_t>(blockIdx.x) * place.strip + thread % place.strip;
    const bool of_batch = launch.partial != nullptr, has_channel = thread < place.strip && channel < channels;
    const bool writes = of_batch && has_channel && blockIdx.y == 0;
    A weight = A(1), bias = A(0);
    double running_mean = 0, running_var = 0;
    if (has_channel)
      weight = number_or<A>(affine.weight, channel, A(1)), bias = number_or<A>(affine.bias, channel, A(0));
    if (has_channel && (writes || !of_batch)) {
      running_mean = number_or<double>(affine.mean, channel, 0);
      running_var = number_or<double>(affine.spread, channel, 0);
    }
    SumPair<double> statistics{running_mean, running_var};
    if (of_batch) statistics = finish_statistics<kThreads, A>(launch, parts, place.strip, channel, inverse_rows);
    const A mean = static_cast<A>(statistics.first);
    const A inverse_std = inverse_root(static_cast<A>(statistics.second) + static_cast<A>(affine.eps));
    if (has_channel) table.mean[thread] = mean, table.scale[thread] = inverse_std * weight, table.bias[thread] = bias;
    __syncthreads();
    if (writes) {
      auto* kept = static_cast<A*>(launch.statistics);
      kept[channel] = mean;
      kept[channels + channel] = inverse_std;
      const auto run_along = [&](const ChannelNumbers& running, double old, double value) {
        if (running.data != nullptr)
          store_number(running.data, running.type, channel, (1 - launch.momentum) * old + launch.momentum * value);
      };
      run_along(affine.mean, running_mean, statistics.first);
      run_along(affine.spread, running_var, statistics.second * unbiased);
      if (channel == 0 && launch.batches != nullptr) ++*launch.batches;
    }
  }
  if (!place.inside) return;
  const ChannelMap<A, V> map = table.of(place.column);
  const T* __restrict__ x = static_cast<const T*>(launch.x);
  const T* __restrict__ residual = static_cast<const T*>(launch.residual);
  T* __restrict__ y = static_cast<T*>(launch.y);
  for (int64_t first = place.row; first < rows; first += kRows * place.step) {
    Pack<T, V> in[kRows], added[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = rows - 1 - (first + k * place.step);
      if (row < 0) continue;
      in[k] = load<T, V>(x, row * channels + place.channel);
      if constexpr (kResidual) added[k] = load<T, V>(residual, row * channels + place.channel);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = rows - 1 - (first + k * place.step);
      if (row < 0) continue;
      A values[V], others[V];
      unpack<T, V>(in[k], values);
      if constexpr (kResidual) unpack<T, V>(added[k], others);
      uint32_t bits = 0;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        values[i] = normalized<A>(values[i] - map.mean[i], map.scale[i], map.bias[i]);
        if constexpr (kResidual) values[i] += others[i];
        if constexpr (kResidual) bits |= passes<T>(values[i]) ? 1u << i : 0u;
        if (launch.relu && values[i] <= A(0)) values[i] = A(0);  // what is no number stays one
      }
      const int64_t at = row * channels + place.channel;
      store_packed<T, V>(y, at, values);
      if constexpr (kResidual)
        if (launch.passed != nullptr) launch.passed[at / V] = static_cast<uint8_t>(bits);
    }
  }
}

}  // namespace

int launch_batch_norm(const BatchNormLaunch& launch, CUstream_st* stream) {
  const auto& shape = launch.shape;
  const auto sums = plan_batch_norm(shape, kStatisticsLoop), plan = plan_batch_norm(shape, kNormalizeLoop);
  const auto parts = parts_of(shape, kStatisticsLoop);
  const double n = static_cast<double>(shape.rows);
  with_batch_norm_type(shape, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    constexpr int V = decltype(width)::value;
    if (launch.partial != nullptr)
      statistics_kernel<T, V><<<grid_of(sums), kStatisticsLoop.threads, 0, stream>>>(
          static_cast<const T*>(launch.x), shape.rows, shape.channels, sums.columns, parts,
          static_cast<Wide<T>*>(launch.partial));
    const auto kernel =
        launch.residual != nullptr ? normalize_rows_kernel<T, V, true> : normalize_rows_kernel<T, V, false>;
    kernel<<<grid_of(plan), kNormalizeLoop.threads, 0, stream>>>(launch, plan.columns, parts, 1 / n, n / (n - 1));
  });
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
