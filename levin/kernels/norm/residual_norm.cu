#include "levin/kernels/early_start.cuh"
#include "levin/kernels/norm/residual_norm_device.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kLongThreads = 256;  // where a row is read more than once
constexpr int64_t kFewRows = 64;   // as when a language model writes

/// A row in registers: E numbers for each thread of `warps` warps. kWarpRow: of one warp, which may have more
/// registers.
template <class S, class B, class O, int E, bool kWarpRow>
__global__ void __launch_bounds__(kWarpRow ? 128 : 512) norm_forward_kernel(const NormForward norm, const int warps) {
  let_next_start();
  wait_for_previous();
  using A = Wide<S>;
  constexpr int V = 16 / sizeof(S), kPacks = E / V;
  __shared__ A slots[2][16];
  const RowGroup all(kWarpRow ? 1 : warps);
  const int t = all.t, lanes = all.lanes;
  const int64_t row = static_cast<int64_t>(block_from_end()) * (blockDim.x / lanes) + all.group;
  if (row >= norm.rows) return;  // a whole group
  const int columns = static_cast<int>(norm.columns);
  const int64_t begin = row * norm.columns;

  Pack<S, V> stream[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i)
    if (const int column = (i * lanes + t) * V; column < columns) stream[i] = load<S, V>(norm.stream, begin + column);
  // Where there are registers for them, weights are on their way with the row.
  constexpr bool kEarly = E == 8;
  A weights[kEarly ? E : 1], biases[kEarly ? E : 1];
  if constexpr (kEarly) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
#pragma unroll
      for (int k = 0; k < V; ++k) weights[i * V + k] = biases[i * V + k] = 0;
      const int column = (i * lanes + t) * V;
      if (column >= columns) continue;
      load_any<V>(norm.weight, norm.weight_type, column, norm.weight_aligned, weights + i * V);
      if (norm.bias != nullptr) load_any<V>(norm.bias, norm.bias_type, column, norm.weight_aligned, biases + i * V);
    }
  }
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
  const A mean = norm.rms ? A(0) : all.sum(sum, slots[0]) / static_cast<A>(columns);
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
  const A rstd = inverse_root(all.sum(squares, slots[1]) / static_cast<A>(columns) + static_cast<A>(norm.eps));
  if (t == 0) {
    if (!norm.rms) static_cast<A*>(norm.mean)[row] = mean;
    static_cast<A*>(norm.rstd)[row] = rstd;
  }

#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int column = (i * lanes + t) * V;
    if (column >= columns) continue;
    A weight[V], bias[V] = {}, out[V];
    if constexpr (kEarly) {
#pragma unroll
      for (int k = 0; k < V; ++k) weight[k] = weights[i * V + k], bias[k] = biases[i * V + k];
    } else {
      load_any<V>(norm.weight, norm.weight_type, column, norm.weight_aligned, weight);
      if (norm.bias != nullptr) load_any<V>(norm.bias, norm.bias_type, column, norm.weight_aligned, bias);
    }
#pragma unroll
    for (int k = 0; k < V; ++k) out[k] = (x[i * V + k] - mean) * rstd * weight[k] + bias[k];
    store_packed<O, V>(norm.output, begin + column, out);
  }
}

/// A row of any length at any address, number by number.
template <class S, class B, class O>
__global__ void __launch_bounds__(kLongThreads) norm_forward_long_kernel(const NormForward norm) {
  let_next_start();
  wait_for_previous();
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
void launch_forward(const NormForward& norm, const NormForwardPlan& plan, cudaStream_t stream) {
  if (!plan.packs) {
    launch_early(norm_forward_long_kernel<S, B, O>,
                 {static_cast<unsigned>(norm.rows), kLongThreads, 0, norm.rows <= kFewRows}, stream, norm);
    return;
  }
  const bool alone = plan.warps == 1;
  const auto kernel = plan.per_thread == 8             ? norm_forward_kernel<S, B, O, 8, false>
                      : plan.per_thread == 16          ? norm_forward_kernel<S, B, O, 16, false>
                      : plan.per_thread == 24 && alone ? norm_forward_kernel<S, B, O, 24, true>
                      : plan.per_thread == 24          ? norm_forward_kernel<S, B, O, 24, false>
                      : alone                          ? norm_forward_kernel<S, B, O, 32, true>
                                                       : norm_forward_kernel<S, B, O, 32, false>;
  const auto blocks = static_cast<unsigned>((norm.rows + plan.groups - 1) / plan.groups);
  launch_early(kernel, {blocks, static_cast<unsigned>(32 * plan.warps * plan.groups), 0, norm.rows <= kFewRows}, stream,
               norm, plan.warps);
}

}  // namespace

int launch_norm_forward(const NormForward& norm, const NormForwardPlan& plan, CUstream_st* stream) {
  const auto branch = norm.branch != nullptr ? norm.branch_type : norm.stream_type;
  const bool known = with_norm_types(norm.stream_type, branch, norm.output_type, [&](auto s, auto b, auto o) {
    launch_forward<typename decltype(s)::type, typename decltype(b)::type, typename decltype(o)::type>(norm, plan,
                                                                                                       stream);
  });
  return static_cast<int>(known ? cudaGetLastError() : cudaErrorInvalidValue);
}

}  // namespace levin::kernels::detail
