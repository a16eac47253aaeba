#include <cuda_runtime.h>

#include "levin/kernels/batch_norm_device.cuh"

namespace levin::kernels::detail {
namespace {

/// How many rows the threads of a part have.
struct PartRows {
  __device__ PartRows(int64_t rows, int64_t height, int parts)
      : tiles((rows + height - 1) / height),
        each(static_cast<int>(tiles / parts)),
        longer(static_cast<int>(tiles % parts)),
        height(height),
        missing(tiles * height - rows),
        last(static_cast<int>((tiles - 1) % parts)) {}
  __device__ int64_t of(int part) const {
    return (each + (part < longer ? 1 : 0)) * height - (part == last ? missing : 0);
  }

  int64_t tiles;
  int each, longer;
  int64_t height, missing;
  int last;
};

/// Sums of deviations from the first number of a thread, so that small variances beside large means are kept. Each part
/// gives its mean and its sum of squared deviations from it.
template <class T, int V>
__global__ void __launch_bounds__(kStatisticsLoop.threads, kStatisticsLoop.resident)
    statistics_kernel(const T* __restrict__ x, int64_t rows, int64_t channels, int columns, Wide<T>* partial) {
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
  const A n = static_cast<A>(count);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (count == 0) continue;
    squares[i] -= sum[i] * (sum[i] / n);
    near[i] += sum[i] / n;
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
  const PartRows part_rows(rows, kThreads / columns, static_cast<int>(gridDim.y));
  const A apart = total.first / static_cast<A>(part_rows.of(static_cast<int>(blockIdx.y)));
  A* out = partial + blockIdx.y * 2 * channels + channel;
  out[0] = pivots[thread] + apart;
  out[channels] = total.second - total.first * apart;
}

/// Mean and inverse standard deviation of the batch, for the channel of each of the first `strip` threads. One block of
/// a strip writes them, and updates the statistics that run along.
template <int kThreads, class A>
__device__ SumPair<A> finish_statistics(const BatchNormLaunch& launch, int strip, int columns, int parts) {
  const auto& shape = launch.shape;
  const auto* partial = static_cast<const A*>(launch.partial);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * strip + thread % strip;
  const PartRows part_rows(shape.rows, kStatisticsLoop.threads / columns, parts);
  const bool inside = channel < shape.channels;
  const double pivot = inside ? static_cast<double>(partial[channel]) : 0;
  const SumPair<double> total = part_sums<kThreads>(inside ? parts : 0, strip, [&](int part) {
    const A* from = partial + part * 2 * shape.channels + channel;
    const double n = static_cast<double>(part_rows.of(part));
    const double apart = static_cast<double>(from[0]) - pivot;
    return SumPair<double>{n * apart, static_cast<double>(from[shape.channels]) + n * apart * apart};
  });
  if (thread >= strip || !inside) return {A(0), A(0)};
  const double n = static_cast<double>(shape.rows), apart = total.first / n, mean = pivot + apart;
  double variance = total.second / n - apart * apart;
  if (variance < 0) variance = 0;
  const SumPair<A> result{static_cast<A>(mean), static_cast<A>(1.0 / sqrt(variance + launch.affine.eps))};
  if (blockIdx.y != 0) return result;
  auto* statistics = static_cast<A*>(launch.statistics);
  statistics[channel] = result.first;
  statistics[shape.channels + channel] = result.second;
  const auto run_along = [&](const ChannelNumbers& running, double value) {
    if (running.data == nullptr) return;
    const auto old = load_number<double>(running.data, running.type, channel);
    store_number(running.data, running.type, channel, (1 - launch.momentum) * old + launch.momentum * value);
  };
  run_along(launch.affine.mean, mean);
  run_along(launch.affine.spread, variance * (n / (n - 1)));
  return result;
}

/// From the last row to the first: the rows that the pass before has read last are still in the cache.
template <class T, int V, bool kResidual>
__global__ void __launch_bounds__(kNormalizeLoop.threads, kNormalizeLoop.resident)
    normalize_rows_kernel(const __grid_constant__ BatchNormLaunch launch, int columns, int parts) {
  using A = Wide<T>;
  constexpr int kThreads = kNormalizeLoop.threads, kRows = kNormalizeLoop.unrolled;
  const int64_t rows = launch.shape.rows, channels = launch.shape.channels;
  const auto place = batch_norm_place<kThreads>(columns, V, channels);
  __shared__ ChannelTable<A, V> table;
  {
    const auto& affine = launch.affine;
    SumPair<A> statistics{A(0), A(0)};
    if (launch.partial != nullptr) statistics = finish_statistics<kThreads, A>(launch, place.strip, columns, parts);
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t channel = static_cast<int64_t>(blockIdx.x) * place.strip + thread;
    if (thread < place.strip && channel < channels) {
      if (launch.partial == nullptr) statistics = {mean_of<A>(affine, channel), inverse_std_of<A>(affine, channel)};
      table.set(thread, statistics.first, statistics.second, affine, channel);
    }
    __syncthreads();
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
      in[k] = load_last<T, V>(x, row * channels + place.channel);
      if constexpr (kResidual) added[k] = load<T, V>(residual, row * channels + place.channel);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = rows - 1 - (first + k * place.step);
      if (row < 0) continue;
      A values[V], others[V];
      unpack<T, V>(in[k], values);
      if constexpr (kResidual) unpack<T, V>(added[k], others);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        values[i] = normalized<A>(values[i] - map.mean[i], map.scale[i], map.bias[i]);
        if constexpr (kResidual) values[i] += others[i];
        if (launch.relu && values[i] <= A(0)) values[i] = A(0);  // what is no number stays one
      }
      store_packed<T, V>(y, row * channels + place.channel, values);
    }
  }
}

}  // namespace

int launch_batch_norm(const BatchNormLaunch& launch, CUstream_st* stream) {
  const auto& shape = launch.shape;
  const auto sums = plan_batch_norm(shape, kStatisticsLoop), plan = plan_batch_norm(shape, kNormalizeLoop);
  with_batch_norm_type(shape, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    constexpr int V = decltype(width)::value;
    if (launch.partial != nullptr)
      statistics_kernel<T, V><<<grid_of(sums), kStatisticsLoop.threads, 0, stream>>>(
          static_cast<const T*>(launch.x), shape.rows, shape.channels, sums.columns,
          static_cast<Wide<T>*>(launch.partial));
    const auto kernel =
        launch.residual != nullptr ? normalize_rows_kernel<T, V, true> : normalize_rows_kernel<T, V, false>;
    kernel<<<grid_of(plan), kNormalizeLoop.threads, 0, stream>>>(launch, plan.columns, static_cast<int>(sums.parts));
  });
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
