#include "levin/kernels/async_copy.cuh"
#include "levin/kernels/norm/residual_norm_device.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kLongThreads = 256;
constexpr int kSumColumns = 32, kSumRows = 8;

template <class A>
__device__ __forceinline__ A row_statistic(const void* list, int64_t row) {
  return list != nullptr ? static_cast<const A*>(list)[row] : A(0);
}

/// Groups of warps walk over the rows, from the last to the first (block_from_end), and keep the sums of columns in
/// registers. The next rows are on their way to shared memory while one is computed.
template <class S, class B, class O, int E, bool kDropout>
__global__ void __launch_bounds__(32 * kNormWarps, norm_resident(E))
    norm_backward_kernel(const NormBackward norm, const int warps, const int stages) {
  constexpr int V = 16 / sizeof(S), kPacks = E / V;
  extern __shared__ __align__(16) unsigned char ring[];
  __shared__ float slots[2][kNormWarps];
  let_next_start();
  const RowGroup all(warps);
  const int t = all.t, lanes = all.lanes;
  const int groups = static_cast<int>(blockDim.x) / lanes;
  const int columns = static_cast<int>(norm.columns);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * groups;
  const float scale = 1.0f / static_cast<float>(columns);
  const bool has_residual = norm.grad_stream != nullptr;
  const int stream_at = columns * static_cast<int>(sizeof(O));
  const int residual_at = stream_at + columns * static_cast<int>(sizeof(S));
  const int row_bytes = residual_at + columns * static_cast<int>(sizeof(S));
  unsigned char* const places = ring + all.group * stages * row_bytes;

  const auto fetch = [&](int64_t row, int stage) {
    if (row >= 0) {
      const int64_t begin = row * norm.columns;
      unsigned char* to = places + stage * row_bytes;
      all.copy(to, static_cast<const O*>(norm.grad_output) + begin, stream_at);
      all.copy(to + stream_at, static_cast<const S*>(norm.stream) + begin, residual_at - stream_at);
      if (has_residual)
        all.copy(to + residual_at, static_cast<const S*>(norm.grad_stream) + begin, residual_at - stream_at);
    }
    end_copies();
  };
  int64_t row = norm.rows - 1 - (static_cast<int64_t>(blockIdx.x) * groups + all.group);
  for (int stage = 0; stage + 1 < stages; ++stage) fetch(row - stage * stride, stage);
  float next_mean = 0, next_rstd = 0;
  if (row >= 0) {
    next_mean = row_statistic<float>(norm.mean, row);
    next_rstd = row_statistic<float>(norm.rstd, row);
  }

  float weight[E], weight_sum[E], bias_sum[E], branch_sum[E];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
#pragma unroll
    for (int k = 0; k < V; ++k)
      weight[i * V + k] = weight_sum[i * V + k] = bias_sum[i * V + k] = branch_sum[i * V + k] = 0;
    if (const int column = (i * lanes + t) * V; column < columns)
      load_any<V>(norm.weight, norm.weight_type, column, norm.weight_aligned, weight + i * V);
  }
  DropoutFactors<float> dropout;
  if constexpr (kDropout) dropout = dropout_factors<float>(norm.dropout, /*backward=*/true);

  for (int stage = 0; row >= 0; row -= stride) {
    await_copies(stages - 2);
    all.meet();  // copies of all are there, and nobody reads the row before any more
    fetch(row - (stages - 1) * stride, stage == 0 ? stages - 1 : stage - 1);
    const unsigned char* here = places + stage * row_bytes;
    stage = stage + 1 == stages ? 0 : stage + 1;
    const float mean = next_mean, rstd = next_rstd;
    if (row - stride >= 0) {
      next_mean = row_statistic<float>(norm.mean, row - stride);
      next_rstd = row_statistic<float>(norm.rstd, row - stride);
    }

    float sum = 0, product = 0;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int column = (i * lanes + t) * V;
      if (column >= columns) continue;
      float grad[V], normed[V];
      load_wide<V, O>(here, column, grad);
      load_wide<V, S>(here + stream_at, column, normed);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const int e = i * V + k;
        normed[k] = (normed[k] - mean) * rstd;
        const float weighted = grad[k] * weight[e];
        weight_sum[e] += grad[k] * normed[k];
        bias_sum[e] += grad[k];
        sum += weighted;
        product += weighted * normed[k];
      }
    }
    sum = warp_sum(sum);
    product = warp_sum(product);
    if (warps > 1) {
      const int warp = static_cast<int>(threadIdx.x) / 32, begin = all.group * warps;
      if (t % 32 == 0) slots[0][warp] = sum, slots[1][warp] = product;
      all.meet();
      sum = product = 0;
      for (int w = begin; w < begin + warps; ++w) sum += slots[0][w], product += slots[1][w];
    }
    sum = norm.rms ? 0.0f : sum * scale;
    product *= scale * rstd;

    const int64_t begin = row * norm.columns;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int column = (i * lanes + t) * V;
      if (column >= columns) continue;
      float grad[V], x[V], values[V] = {};
      load_wide<V, O>(here, column, grad);
      load_wide<V, S>(here + stream_at, column, x);
      if (has_residual) load_wide<V, S>(here + residual_at, column, values);
#pragma unroll
      for (int k = 0; k < V; ++k) values[k] += rstd * (grad[k] * weight[i * V + k] - sum - (x[k] - mean) * product);
      store_packed<S, V>(norm.grad_sum, begin + column, values);
      if constexpr (kDropout) {
        float factors[V];
        dropout.template factors<V>(begin + column, factors);
#pragma unroll
        for (int k = 0; k < V; ++k) values[k] = factors[k] == 0 ? 0.0f : values[k] * factors[k];
      }
#pragma unroll
      for (int k = 0; k < V; ++k) branch_sum[i * V + k] += values[k];
      if (norm.grad_branch != nullptr) store_packed<B, V>(norm.grad_branch, begin + column, values);
    }
  }

  if (norm.partials == nullptr) return;
  float* partials = static_cast<float*>(norm.partials) + static_cast<int64_t>(blockIdx.x) * norm.columns;
  const int64_t second = static_cast<int64_t>(gridDim.x) * norm.columns;
  const int lists = norm.branch_sums != nullptr ? 3 : 2;
  if (groups == 1) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int column = (i * lanes + t) * V;
      if (column >= columns) continue;
      store_packed<float, V>(partials, column, weight_sum + i * V);
      store_packed<float, V>(partials + second, column, bias_sum + i * V);
      if (lists == 3) store_packed<float, V>(partials + 2 * second, column, branch_sum + i * V);
    }
    return;
  }
  // The places of rows, two or more of 6 bytes and more a number, have room for three lists of each group.
  await_copies<0>();
  __syncthreads();
  float* sums = reinterpret_cast<float*>(ring);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int column = (i * lanes + t) * V;
    if (column >= columns) continue;
    float* const own = sums + lists * all.group * columns;
    put_packed<float, V>(own, column, weight_sum + i * V);
    put_packed<float, V>(own + columns, column, bias_sum + i * V);
    if (lists == 3) put_packed<float, V>(own + 2 * columns, column, branch_sum + i * V);
  }
  __syncthreads();
  for (int list = 0; list < lists; ++list)
    for (int at = static_cast<int>(threadIdx.x); at < columns; at += static_cast<int>(blockDim.x)) {
      float sum = 0;
      for (int g = 0; g < groups; ++g) sum += sums[(lists * g + list) * columns + at];
      partials[list * second + at] = sum;
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
  let_next_start();
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

template <class S, class B, class O, int E, bool kDropout>
int launch_rows(const NormBackward& norm, const NormPlan& plan, cudaStream_t stream) {
  const auto kernel = norm_backward_kernel<S, B, O, E, kDropout>;
  // More than 48 KB, of which variables of the kernel have a part, is to be asked for.
  if (plan.shared > 32 * 1024)
    if (const auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared))
      return static_cast<int>(error);
  kernel<<<static_cast<unsigned>(plan.blocks), 32 * plan.warps * plan.groups, static_cast<size_t>(plan.shared),
           stream>>>(norm, plan.warps, plan.stages);
  return 0;
}

template <class S, class B, class O, bool kDropout>
int launch_packs(const NormBackward& norm, const NormPlan& plan, cudaStream_t stream) {
  switch (plan.per_thread) {
    case 8:
      return launch_rows<S, B, O, 8, kDropout>(norm, plan, stream);
    case 16:
      return launch_rows<S, B, O, 16, kDropout>(norm, plan, stream);
    case 24:
      return launch_rows<S, B, O, 24, kDropout>(norm, plan, stream);
    default:
      return launch_rows<S, B, O, 32, kDropout>(norm, plan, stream);
  }
}

template <class S, class B, class O>
int launch_backward(const NormBackward& norm, const NormPlan& plan, cudaStream_t stream) {
  using A = Wide<S>;
  if (plan.packs) {
    if constexpr (sizeof(S) < 8) {
      const int error = norm.dropout.enabled ? launch_packs<S, B, O, true>(norm, plan, stream)
                                             : launch_packs<S, B, O, false>(norm, plan, stream);
      if (error != 0) return error;
    }
  } else {
    norm_backward_long_kernel<S, B, O><<<static_cast<unsigned>(norm.rows), kLongThreads, 0, stream>>>(norm);
    if (norm.partials != nullptr) {
      const dim3 grid(static_cast<unsigned>((norm.columns + kSumColumns - 1) / kSumColumns),
                      static_cast<unsigned>(plan.blocks));
      norm_weight_sums_kernel<S, O><<<grid, dim3(kSumColumns, kSumRows), 0, stream>>>(norm);
    }
  }
  if (norm.partials != nullptr)
    launch_finish(static_cast<const A*>(norm.partials), plan.blocks, norm.columns,
                  {{norm.grad_weight, norm.grad_bias, norm.branch_sums},
                   {norm.grad_weight_type, norm.grad_bias_type, norm.branch_sums_type}},
                  stream);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

int launch_norm_backward(const NormBackward& norm, const NormPlan& plan, CUstream_st* stream) {
  const auto branch = norm.grad_branch != nullptr ? norm.branch_type : norm.stream_type;
  int error = static_cast<int>(cudaErrorInvalidValue);  // stays where there is no kernel
  with_norm_types(norm.stream_type, branch, norm.output_type, [&](auto s, auto b, auto o) {
    error = launch_backward<typename decltype(s)::type, typename decltype(b)::type, typename decltype(o)::type>(
        norm, plan, stream);
  });
  return error;
}

}  // namespace levin::kernels::detail
