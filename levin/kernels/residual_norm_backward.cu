#include "levin/kernels/residual_norm_device.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kLongThreads = 256;
constexpr int kSumColumns = 32, kSumRows = 8;

template <class A>
__device__ __forceinline__ A row_statistic(const void* list, int64_t row) {
  return list != nullptr ? static_cast<const A*>(list)[row] : A(0);
}

/// One row's packs as they come from memory.
template <class S, class O, int V, int kPacks>
struct GradientRow {
  Pack<O, V> grad[kPacks];
  Pack<S, V> stream[kPacks];
  Pack<S, V> residual[kPacks];

  __device__ __forceinline__ void load_from(const NormBackward& norm, int64_t row, int t, int lanes) {
    const int columns = static_cast<int>(norm.columns);
    const int64_t begin = row * norm.columns;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int column = (i * lanes + t) * V;
      if (column >= columns) continue;
      if (norm.grad_output != nullptr) grad[i] = load<O, V>(norm.grad_output, begin + column);
      stream[i] = load<S, V>(norm.stream, begin + column);
      if (norm.grad_stream != nullptr) residual[i] = load<S, V>(norm.grad_stream, begin + column);
    }
  }
};

/// Blocks walk over the rows and keep the sums of columns in registers. Where `kAhead`, the next row is on its way
/// while one is computed.
template <class S, class B, class O, int E, bool kAhead, bool kDropout>
__global__ void __launch_bounds__(sizeof(S) == 8             ? 256
                                  : sizeof(S) == 2 && E == 8 ? 768
                                                             : 512)
    norm_backward_kernel(const NormBackward norm, const int warps) {
  using A = Wide<S>;
  constexpr int V = 16 / sizeof(S), kPacks = E / V;
  constexpr int kGroups = 4;  // warps of a block that has a row for each
  __shared__ A slots[2][2][32];
  __shared__ A sums[kGroups][32 * E];
  const int lanes = 32 * warps;
  const int t = warps == 1 ? static_cast<int>(threadIdx.x) % 32 : static_cast<int>(threadIdx.x);
  const int group = warps == 1 ? static_cast<int>(threadIdx.x) / 32 : 0;
  const int groups = warps == 1 ? kGroups : 1;
  const int columns = static_cast<int>(norm.columns);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * groups + group;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * groups;
  const A scale = A(1) / static_cast<A>(columns);
  const bool has_grad = norm.grad_output != nullptr, has_residual = norm.grad_stream != nullptr;

  // Weights stay in registers where there is room for them.
  constexpr bool kKeepsWeight = E == 8;
  A weight[kKeepsWeight ? E : 1], weight_sum[E], bias_sum[E];
#pragma unroll
  for (int e = 0; e < E; ++e) weight_sum[e] = bias_sum[e] = 0;
  if constexpr (kKeepsWeight) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
#pragma unroll
      for (int k = 0; k < V; ++k) weight[i * V + k] = 0;
      if (const int column = (i * lanes + t) * V; column < columns)
        load_any<V>(norm.weight, norm.weight_type, column, norm.weight_aligned, weight + i * V);
    }
  }
  DropoutFactors<A> dropout;
  if constexpr (kDropout) dropout = dropout_factors<A>(norm.dropout, /*backward=*/true);

  GradientRow<S, O, V, kPacks> next;
  if (kAhead && first < norm.rows) next.load_from(norm, first, t, lanes);
  int turn = 0;
  for (int64_t row = first; row < norm.rows; row += stride, turn ^= 1) {
    GradientRow<S, O, V, kPacks> here;
    if constexpr (kAhead) {
      here = next;
      if (row + stride < norm.rows) next.load_from(norm, row + stride, t, lanes);
    } else {
      here.load_from(norm, row, t, lanes);
    }
    const A mean = row_statistic<A>(norm.mean, row), rstd = row_statistic<A>(norm.rstd, row);
    const int64_t begin = row * norm.columns;
    A weighted[E], normed[E];
    A sum = 0, product = 0;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      A grad[V], factor[V];
#pragma unroll
      for (int k = 0; k < V; ++k) {
        grad[k] = normed[i * V + k] = 0;
        factor[k] = kKeepsWeight ? weight[kKeepsWeight ? i * V + k : 0] : A(0);
      }
      const int column = (i * lanes + t) * V;
      if (has_grad && column < columns) {
        if constexpr (!kKeepsWeight) load_any<V>(norm.weight, norm.weight_type, column, norm.weight_aligned, factor);
        unpack<O, V>(here.grad[i], grad);
        unpack<S, V>(here.stream[i], normed + i * V);
#pragma unroll
        for (int k = 0; k < V; ++k) normed[i * V + k] = (normed[i * V + k] - mean) * rstd;
      }
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const int e = i * V + k;
        weighted[e] = grad[k] * factor[k];
        weight_sum[e] += grad[k] * normed[e];
        bias_sum[e] += grad[k];
        sum += weighted[e];
        product += weighted[e] * normed[e];
      }
    }
    sum = warp_sum(sum);
    product = warp_sum(product);
    if (warps > 1) {
      // Two sets of slots in turn: nobody writes one before all have read it, a barrier later.
      const int lane = t % 32, warp = t / 32;
      if (lane == 0) {
        slots[turn][0][warp] = sum;
        slots[turn][1][warp] = product;
      }
      __syncthreads();
      sum = warp_sum(lane < warps ? slots[turn][0][lane] : A(0));
      product = warp_sum(lane < warps ? slots[turn][1][lane] : A(0));
    }
    sum = norm.rms ? A(0) : sum * scale;
    product *= scale;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int column = (i * lanes + t) * V;
      if (column >= columns) continue;
      A values[V];
#pragma unroll
      for (int k = 0; k < V; ++k) values[k] = 0;
      if (has_residual) unpack<S, V>(here.residual[i], values);
#pragma unroll
      for (int k = 0; k < V; ++k)
        if (has_grad) values[k] += rstd * (weighted[i * V + k] - sum - normed[i * V + k] * product);
      store_packed<S, V>(norm.grad_sum, begin + column, values);
      if (norm.grad_branch == nullptr) continue;
      if constexpr (kDropout) {
        A factors[V];
        dropout.template factors<V>(begin + column, factors);
#pragma unroll
        for (int k = 0; k < V; ++k) values[k] = factors[k] == 0 ? A(0) : values[k] * factors[k];
      }
      store_packed<B, V>(norm.grad_branch, begin + column, values);
    }
  }

  if (norm.partials == nullptr) return;
  A* partials = static_cast<A*>(norm.partials) + static_cast<int64_t>(blockIdx.x) * norm.columns;
  const int64_t second = static_cast<int64_t>(gridDim.x) * norm.columns;
  if (warps > 1) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int column = (i * lanes + t) * V;
      if (column >= columns) continue;
      store_packed<A, V>(partials, column, weight_sum + i * V);
      store_packed<A, V>(partials + second, column, bias_sum + i * V);
    }
    return;
  }
  for (int which = 0; which < 2; ++which) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
#pragma unroll
      for (int k = 0; k < V; ++k)
        sums[group][(i * 32 + t) * V + k] = which == 0 ? weight_sum[i * V + k] : bias_sum[i * V + k];
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < columns; column += static_cast<int>(blockDim.x)) {
      A sum = 0;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) sum += sums[g][column];
      partials[which * second + column] = sum;
    }
  }
}

/// A row of any length at any address, number by number; without sums of columns.
template <class S, class B, class O>
__global__ void __launch_bounds__(kLongThreads) norm_backward_long_kernel(const NormBackward norm) {
  using A = Wide<S>;
  __shared__ A slots[2][32];
  constexpr int kWarps = kLongThreads / 32;
  const int64_t row = blockIdx.x, columns = norm.columns, begin = row * columns;
  const O* grad = norm.grad_output != nullptr ? static_cast<const O*>(norm.grad_output) + begin : nullptr;
  const S* residual = norm.grad_stream != nullptr ? static_cast<const S*>(norm.grad_stream) + begin : nullptr;
  const S* stream = static_cast<const S*>(norm.stream) + begin;
  const A mean = row_statistic<A>(norm.mean, row), rstd = row_statistic<A>(norm.rstd, row);
  A sum = 0, product = 0;
  if (grad != nullptr)
    for (int64_t c = threadIdx.x; c < columns; c += kLongThreads) {
      const A weighted = widened(grad[c]) * load_number<A>(norm.weight, norm.weight_type, c);
      sum += weighted;
      product += weighted * (widened(stream[c]) - mean) * rstd;
    }
  sum = row_sum(sum, kWarps, slots[0]) / static_cast<A>(columns);
  product = row_sum(product, kWarps, slots[1]) / static_cast<A>(columns);
  if (norm.rms) sum = 0;
  DropoutFactors<A> dropout;
  if (norm.dropout.enabled) dropout = dropout_factors<A>(norm.dropout, /*backward=*/true);
  for (int64_t c = threadIdx.x; c < columns; c += kLongThreads) {
    A value = 0;
    if (grad != nullptr)
      value = rstd * (widened(grad[c]) * load_number<A>(norm.weight, norm.weight_type, c) - sum -
                      (widened(stream[c]) - mean) * rstd * product);
    if (residual != nullptr) value += widened(residual[c]);
    static_cast<S*>(norm.grad_sum)[begin + c] = narrowed<S>(value);
    if (norm.grad_branch == nullptr) continue;
    if (norm.dropout.enabled) {
      A factor;
      dropout.template factors<1>(begin + c, &factor);
      value = factor == 0 ? A(0) : value * factor;
    }
    static_cast<B*>(norm.grad_branch)[begin + c] = narrowed<B>(value);
  }
}

/// Sums of columns of part blockIdx.y of the rows.
template <class S, class O>
__global__ void __launch_bounds__(kSumColumns* kSumRows) norm_weight_sums_kernel(const NormBackward norm) {
  using A = Wide<S>;
  __shared__ A sums[2][kSumRows][kSumColumns];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSumColumns + x, columns = norm.columns;
  const int64_t parts = gridDim.y, part = blockIdx.y;
  A weight_sum = 0, bias_sum = 0;
  if (column < columns)
    for (int64_t row = part * kSumRows + y; row < norm.rows; row += parts * kSumRows) {
      const A grad = widened(static_cast<const O*>(norm.grad_output)[row * columns + column]);
      const A x_here = widened(static_cast<const S*>(norm.stream)[row * columns + column]);
      weight_sum += grad * (x_here - row_statistic<A>(norm.mean, row)) * row_statistic<A>(norm.rstd, row);
      bias_sum += grad;
    }
  sums[0][y][x] = weight_sum;
  sums[1][y][x] = bias_sum;
  __syncthreads();
  if (y > 1 || column >= columns) return;
  A sum = 0;
#pragma unroll
  for (int each = 0; each < kSumRows; ++each) sum += sums[y][each][x];
  static_cast<A*>(norm.partials)[(y * parts + part) * columns + column] = sum;
}

template <class S, class B, class O, bool kDropout>
void launch_packs(const NormBackward& norm, const NormPlan& plan, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(plan.blocks);
  const int threads = 32 * plan.warps * plan.groups;
  if (plan.per_thread == 8)
    norm_backward_kernel<S, B, O, 8, true, kDropout><<<blocks, threads, 0, stream>>>(norm, plan.warps);
  else if constexpr (sizeof(S) < 8)
    norm_backward_kernel<S, B, O, 16, false, kDropout><<<blocks, threads, 0, stream>>>(norm, plan.warps);
}

template <class S, class B, class O>
void launch_backward(const NormBackward& norm, const NormPlan& plan, cudaStream_t stream) {
  using A = Wide<S>;
  const auto blocks = static_cast<unsigned>(plan.blocks);
  if (plan.packs) {
    if (norm.dropout.enabled)
      launch_packs<S, B, O, true>(norm, plan, stream);
    else
      launch_packs<S, B, O, false>(norm, plan, stream);
  } else {
    norm_backward_long_kernel<S, B, O><<<static_cast<unsigned>(norm.rows), kLongThreads, 0, stream>>>(norm);
    if (norm.partials != nullptr) {
      const dim3 grid(static_cast<unsigned>((norm.columns + kSumColumns - 1) / kSumColumns), blocks);
      norm_weight_sums_kernel<S, O><<<grid, dim3(kSumColumns, kSumRows), 0, stream>>>(norm);
    }
  }
  if (norm.partials != nullptr)
    launch_finish(static_cast<const A*>(norm.partials), plan.blocks, norm.columns, norm.grad_weight,
                  norm.grad_weight_type, norm.grad_bias, norm.grad_bias_type, stream);
}

}  // namespace

int launch_norm_backward(const NormBackward& norm, const NormPlan& plan, CUstream_st* stream) {
  const auto branch = norm.grad_branch != nullptr ? norm.branch_type : norm.stream_type;
  const bool known = with_norm_types(norm.stream_type, branch, norm.output_type, [&](auto s, auto b, auto o) {
    launch_backward<typename decltype(s)::type, typename decltype(b)::type, typename decltype(o)::type>(norm, plan,
                                                                                                        stream);
  });
  return static_cast<int>(known ? cudaGetLastError() : cudaErrorInvalidValue);
}

}  // namespace levin::kernels::detail
