#include "levin/kernels/residual_norm_device.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kForwardThreads = 128;  // where a warp has a row of its own
constexpr int kLongThreads = 256;     // where a row is read more than once

/// A row in registers: E numbers for each thread of `warps` warps.
template <class S, class B, class O, int E>
__global__ void __launch_bounds__(E == 16 ? 1024 : kForwardThreads)
    norm_forward_kernel(const NormForward norm, const int warps) {
  using A = Wide<S>;
  constexpr int V = 16 / sizeof(S), kPacks = E / V;
  __shared__ A slots[2][32];
  const int lanes = 32 * warps;
  const int t = warps == 1 ? static_cast<int>(threadIdx.x) % 32 : static_cast<int>(threadIdx.x);
  const int64_t row = warps == 1 ? static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
  if (row >= norm.rows) return;  // a whole warp; where a block has one row there is none to spare
  const int columns = static_cast<int>(norm.columns);
  const int64_t begin = row * norm.columns;

  Pack<S, V> stream[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i)
    if (const int column = (i * lanes + t) * V; column < columns) stream[i] = load<S, V>(norm.stream, begin + column);
  if (norm.branch != nullptr) {
    Pack<B, V> branch[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
      if (const int column = (i * lanes + t) * V; column < columns) branch[i] = load<B, V>(norm.branch, begin + column);
    DropoutFactors<A> dropout;
    if (norm.dropout.enabled) dropout = dropout_factors<A>(norm.dropout, /*backward=*/false);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int column = (i * lanes + t) * V;
      if (column >= columns) continue;
      A sums[V], added[V];
      unpack<S, V>(stream[i], sums);
      unpack<B, V>(branch[i], added);
      if (norm.dropout.enabled) {
        A factors[V];
        dropout.template factors<V>(begin + column, factors);
#pragma unroll
        for (int k = 0; k < V; ++k) added[k] = factors[k] == 0 ? A(0) : added[k] * factors[k];
      }
#pragma unroll
      for (int k = 0; k < V; ++k) sums[k] += added[k];
      stream[i] = packed<S, V>(sums);
      store<S, V>(norm.sum, begin + column, stream[i]);
    }
  }

  // The statistics are those of the sum as it is kept: backward sees no other.
  A x[E];
  A sum = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
#pragma unroll
    for (int k = 0; k < V; ++k) x[i * V + k] = 0;
    if ((i * lanes + t) * V < columns) unpack<S, V>(stream[i], x + i * V);
#pragma unroll
    for (int k = 0; k < V; ++k) sum += x[i * V + k];
  }
  const A mean = norm.rms ? A(0) : row_sum(sum, warps, slots[0]) / static_cast<A>(columns);
  A squares = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const bool inside = (i * lanes + t) * V < columns;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const A centered = inside ? x[i * V + k] - mean : A(0);
      squares += centered * centered;
    }
  }
  const A rstd = inverse_root(row_sum(squares, warps, slots[1]) / static_cast<A>(columns) + static_cast<A>(norm.eps));
  if (t == 0) {
    if (!norm.rms) static_cast<A*>(norm.mean)[row] = mean;
    static_cast<A*>(norm.rstd)[row] = rstd;
  }

#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int column = (i * lanes + t) * V;
    if (column >= columns) continue;
    A weight[V], bias[V] = {};
    load_any<V>(norm.weight, norm.weight_type, column, norm.weight_aligned, weight);
    if (norm.bias != nullptr) load_any<V>(norm.bias, norm.bias_type, column, norm.weight_aligned, bias);
    A out[V];
#pragma unroll
    for (int k = 0; k < V; ++k) out[k] = (x[i * V + k] - mean) * rstd * weight[k] + bias[k];
    store_packed<O, V>(norm.output, begin + column, out);
  }
}

/// A row of any length at any address, number by number.
template <class S, class B, class O>
__global__ void __launch_bounds__(kLongThreads) norm_forward_long_kernel(const NormForward norm) {
  using A = Wide<S>;
  __shared__ A slots[2][32];
  constexpr int kWarps = kLongThreads / 32;
  const int64_t row = blockIdx.x, columns = norm.columns, begin = row * columns;
  const S* stream = static_cast<const S*>(norm.stream) + begin;
  A sum = 0;
  if (norm.branch != nullptr) {
    const B* branch = static_cast<const B*>(norm.branch) + begin;
    S* kept = static_cast<S*>(norm.sum) + begin;
    DropoutFactors<A> dropout;
    if (norm.dropout.enabled) dropout = dropout_factors<A>(norm.dropout, /*backward=*/false);
    for (int64_t c = threadIdx.x; c < columns; c += kLongThreads) {
      A added = widened(branch[c]);
      if (norm.dropout.enabled) {
        A factor;
        dropout.template factors<1>(begin + c, &factor);
        added = factor == 0 ? A(0) : added * factor;
      }
      const S h = narrowed<S>(widened(stream[c]) + added);
      kept[c] = h;
      sum += widened(h);
    }
    stream = kept;  // every thread reads what it has written itself
  } else {
    for (int64_t c = threadIdx.x; c < columns; c += kLongThreads) sum += widened(stream[c]);
  }
  const A mean = norm.rms ? A(0) : row_sum(sum, kWarps, slots[0]) / static_cast<A>(columns);
  A squares = 0;
  for (int64_t c = threadIdx.x; c < columns; c += kLongThreads) {
    const A centered = widened(stream[c]) - mean;
    squares += centered * centered;
  }
  const A rstd = inverse_root(row_sum(squares, kWarps, slots[1]) / static_cast<A>(columns) + static_cast<A>(norm.eps));
  if (threadIdx.x == 0) {
    if (!norm.rms) static_cast<A*>(norm.mean)[row] = mean;
    static_cast<A*>(norm.rstd)[row] = rstd;
  }
  O* output = static_cast<O*>(norm.output) + begin;
  for (int64_t c = threadIdx.x; c < columns; c += kLongThreads) {
    const A weight = load_number<A>(norm.weight, norm.weight_type, c);
    const A bias = norm.bias != nullptr ? load_number<A>(norm.bias, norm.bias_type, c) : A(0);
    output[c] = narrowed<O>((widened(stream[c]) - mean) * rstd * weight + bias);
  }
}

template <class S, class B, class O>
void launch_forward(const NormForward& norm, bool aligned, cudaStream_t stream) {
  const int64_t columns = norm.columns;
  if (!aligned || columns % (16 / static_cast<int64_t>(sizeof(S))) != 0 || columns > 16 * 1024) {
    norm_forward_long_kernel<S, B, O><<<static_cast<unsigned>(norm.rows), kLongThreads, 0, stream>>>(norm);
    return;
  }
  if (columns <= 1024) {
    constexpr int kRows = kForwardThreads / 32;
    const auto blocks = static_cast<unsigned>((norm.rows + kRows - 1) / kRows);
    if (columns <= 256)
      norm_forward_kernel<S, B, O, 8><<<blocks, kForwardThreads, 0, stream>>>(norm, 1);
    else if (columns <= 512)
      norm_forward_kernel<S, B, O, 16><<<blocks, kForwardThreads, 0, stream>>>(norm, 1);
    else if (columns <= 768)
      norm_forward_kernel<S, B, O, 24><<<blocks, kForwardThreads, 0, stream>>>(norm, 1);
    else
      norm_forward_kernel<S, B, O, 32><<<blocks, kForwardThreads, 0, stream>>>(norm, 1);
    return;
  }
  const int warps = static_cast<int>((columns + 511) / 512);
  norm_forward_kernel<S, B, O, 16><<<static_cast<unsigned>(norm.rows), 32 * warps, 0, stream>>>(norm, warps);
}

}  // namespace

int launch_norm_forward(const NormForward& norm, bool aligned, CUstream_st* stream) {
  const auto branch = norm.branch != nullptr ? norm.branch_type : norm.stream_type;
  const bool known = with_norm_types(norm.stream_type, branch, norm.output_type, [&](auto s, auto b, auto o) {
    launch_forward<typename decltype(s)::type, typename decltype(b)::type, typename decltype(o)::type>(norm, aligned,
                                                                                                       stream);
  });
  return static_cast<int>(known ? cudaGetLastError() : cudaErrorInvalidValue);
}

}  // namespace levin::kernels::detail
