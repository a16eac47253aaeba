#include <cuda_runtime.h>

#include "levin/kernels/norm/batch_norm_device.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kThreads = kBackwardLoop.threads;

/// Calls f(place, masked gradient, x - mean) for the rows of a thread; kBackwards goes from the last row to the first,
/// since the rows that the pass before has read last are still in the cache. Without `reads_x` the deviation is 0.
template <class T, int V, ReluMask kMask, bool kBackwards, class F>
__device__ __forceinline__ void for_each_row(const BatchNormBackwardLaunch& launch, const BatchNormPlace& place,
                                             bool reads_x, const ChannelMap<Wide<T>, V>& map, const F& f) {
  using A = Wide<T>;
  constexpr int kRows = kBackwardLoop.unrolled;
  const int64_t rows = launch.shape.rows, channels = launch.shape.channels;
  for (int64_t first = place.row; first < rows; first += kRows * place.step) {
    Pack<T, V> grads[kRows], ins[kRows];
    uint32_t bits[kRows];
    int64_t at[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = first + k * place.step;
      at[k] = (kBackwards ? rows - 1 - row : row) * channels + place.channel;
      if (row >= rows) continue;
      grads[k] = load<T, V>(launch.dy, at[k]);
      if (reads_x) ins[k] = load<T, V>(launch.x, at[k]);
      if constexpr (kMask == ReluMask::kBits) bits[k] = launch.passed[at[k] / V];
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      if (first + k * place.step >= rows) continue;
      A grad[V], in[V];
      unpack<T, V>(grads[k], grad);
      unpack<T, V>(ins[k], in);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        in[i] = reads_x ? in[i] - map.mean[i] : A(0);
        if constexpr (kMask == ReluMask::kBits) grad[i] = bits[k] >> i & 1 ? grad[i] : A(0);
        if constexpr (kMask == ReluMask::kInput)
          grad[i] = passes<T>(normalized<A>(in[i], map.scale[i], map.bias[i])) ? grad[i] : A(0);
      }
      f(at[k], grad, in);
      if constexpr (kMask != ReluMask::kNone)
        if (launch.masked != nullptr) store_packed<T, V>(launch.masked, at[k], grad);
    }
  }
}

template <class T, int V, ReluMask kMask>
__global__ void __launch_bounds__(kThreads, kBackwardLoop.resident)
    backward_sums_kernel(const __grid_constant__ BatchNormBackwardLaunch launch, int columns) {
  using A = Wide<T>;
  const int64_t channels = launch.shape.channels;
  const auto place = batch_norm_place<kThreads>(columns, V, channels);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * place.strip + thread;
  const bool has_channel = thread < place.strip && channel < channels;
  __shared__ ChannelTable<A, V> table;
  if (has_channel) {
    const auto& affine = launch.affine;
    table.mean[thread] = mean_of<A>(affine, channel);
    table.scale[thread] = inverse_std_of<A>(affine, channel) * number_or<A>(affine.weight, channel, A(1));
    table.bias[thread] = number_or<A>(affine.bias, channel, A(0));
  }
  __syncthreads();
  const ChannelMap<A, V> map = table.of(place.column);
  A sum[V], product[V];
#pragma unroll
  for (int i = 0; i < V; ++i) sum[i] = product[i] = A(0);
  if (place.inside)
    for_each_row<T, V, kMask, false>(launch, place, true, map, [&](int64_t, const A* grad, const A* deviation) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        sum[i] += grad[i];
        product[i] = multiply_add(deviation[i], grad[i], product[i]);
      }
    });
  const SumPair<A> total = block_sums<kThreads, A, V>(sum, product, columns);
  if (!has_channel) return;
  A* out = static_cast<A*>(launch.partial) + blockIdx.y * 2 * channels + channel;
  out[0] = total.first;
  out[channels] = total.second;
}

/// dx = scale dy + constant + slope (x - mean). Finishes the sums; one block of a strip writes the gradients of weight
/// and bias.
template <class T, int V, ReluMask kMask>
__global__ void __launch_bounds__(kThreads, kBackwardLoop.resident)
    backward_input_kernel(const __grid_constant__ BatchNormBackwardLaunch launch, int columns, int parts,
                          double inverse_rows) {
  using A = Wide<T>;
  const int64_t channels = launch.shape.channels;
  const auto place = batch_norm_place<kThreads>(columns, V, channels);
  __shared__ ChannelTable<A, V> table;
  __shared__ A constants[kStrip<V>], slopes[kStrip<V>];
  {
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t channel = static_cast<int64_t>(blockIdx.x) * place.strip + thread % place.strip;
    const bool has_channel = thread < place.strip && channel < channels;
    // What waits for nothing is read before the sums are.
    A inverse_std = A(0), scale = A(0);
    if (has_channel) {
      const auto& affine = launch.affine;
      inverse_std = inverse_std_of<A>(affine, channel);
      scale = inverse_std * number_or<A>(affine.weight, channel, A(1));
      table.mean[thread] = mean_of<A>(affine, channel);
      table.scale[thread] = scale;
      table.bias[thread] = number_or<A>(affine.bias, channel, A(0));
    }
    SumPair<double> sums{0, 0};
    if (launch.partial != nullptr)
      sums = part_sums<kThreads>(channel < channels ? parts : 0, place.strip, [&](int part) {
        const A* from = static_cast<const A*>(launch.partial) + part * 2 * channels + channel;
        return SumPair<double>{static_cast<double>(from[0]), static_cast<double>(from[channels])};
      });
    if (has_channel) {
      const A of_mean = static_cast<A>(sums.first * inverse_rows),
              of_spread = static_cast<A>(sums.second * inverse_rows);
      constants[thread] = launch.of_batch ? -scale * of_mean : A(0);
      slopes[thread] = launch.of_batch ? -scale * inverse_std * inverse_std * of_spread : A(0);
    }
    __syncthreads();
    if (has_channel && blockIdx.y == 0) {
      const auto &weight = launch.grad_weight, &bias = launch.grad_bias;
      if (weight.data != nullptr) store_number(weight.data, weight.type, channel, sums.second * inverse_std);
      if (bias.data != nullptr) store_number(bias.data, bias.type, channel, sums.first);
    }
  }
  if (!place.inside || launch.dx == nullptr) return;
  const ChannelMap<A, V> map = table.of(place.column);
  A constant[V], slope[V];
#pragma unroll
  for (int i = 0; i < V; ++i) constant[i] = constants[place.column * V + i], slope[i] = slopes[place.column * V + i];
  const bool reads_x = launch.of_batch || kMask == ReluMask::kInput;
  for_each_row<T, V, kMask, true>(launch, place, reads_x, map, [&](int64_t at, const A* grad, const A* deviation) {
    A result[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      result[i] = multiply_add(grad[i], map.scale[i], constant[i]);
      // Constant statistics take no gradient, whatever x is: 0 times infinity is no number.
      if (launch.of_batch) result[i] = multiply_add(deviation[i], slope[i], result[i]);
    }
    store_packed<T, V>(launch.dx, at, result);
  });
}

template <ReluMask kMask>
struct MaskOf {
  static constexpr ReluMask value = kMask;
};

template <class F>
void with_mask(ReluMask mask, const F& f) {
  switch (mask) {
    case ReluMask::kNone:
      return f(MaskOf<ReluMask::kNone>());
    case ReluMask::kBits:
      return f(MaskOf<ReluMask::kBits>());
    case ReluMask::kInput:
      return f(MaskOf<ReluMask::kInput>());
  }
}

}  // namespace

int launch_batch_norm_backward(const BatchNormBackwardLaunch& asked, CUstream_st* stream) {
  BatchNormBackwardLaunch launch = asked;
  const auto plan = plan_batch_norm(launch.shape, kBackwardLoop);
  with_batch_norm_type(launch.shape, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    constexpr int V = decltype(width)::value;
    if (launch.partial != nullptr) {
      with_mask(launch.mask, [&](auto mask) {
        backward_sums_kernel<T, V, decltype(mask)::value><<<grid_of(plan), kThreads, 0, stream>>>(launch, plan.columns);
      });
      if (launch.masked != nullptr) {
        // It is written: the second pass reads it in place of dy.
        launch.dy = launch.masked;
        launch.masked = nullptr;
        launch.mask = ReluMask::kNone;
      }
    }
    const dim3 grid = launch.dx != nullptr ? grid_of(plan) : dim3(static_cast<unsigned>(plan.strips));
    with_mask(launch.mask, [&](auto mask) {
      backward_input_kernel<T, V, decltype(mask)::value><<<grid, kThreads, 0, stream>>>(
          launch, plan.columns, static_cast<int>(plan.parts), 1.0 / static_cast<double>(launch.shape.rows));
    });
  });
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
