#include "levin/kernels/linear/linear_launch.h"
#include "levin/kernels/packs.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kAcross = 32, kDown = 8, kAhead = 4;

/// A block adds up 32 * V columns of part blockIdx.y of the rows.
template <class T, int V>
__global__ void __launch_bounds__(kAcross* kDown) column_sum_kernel(const ColumnSum sum) {
  using A = Wide<T>;
  __shared__ A sums[kDown][kAcross * V];
  let_next_start();
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kAcross * V, column = first + x * V;
  const int64_t per_part = (sum.rows + sum.parts - 1) / sum.parts, begin = per_part * blockIdx.y;
  const int64_t end = begin + per_part < sum.rows ? begin + per_part : sum.rows;
  A total[V] = {};
  if (column < sum.columns) {
    int64_t row = begin + y;
    for (; row + (kAhead - 1) * kDown < end; row += kAhead * kDown) {
      Pack<T, V> packs[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) packs[i] = load<T, V>(sum.from, (row + i * kDown) * sum.columns + column);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        A values[V];
        unpack<T, V>(packs[i], values);
#pragma unroll
        for (int k = 0; k < V; ++k) total[k] += values[k];
      }
    }
    for (; row < end; row += kDown) {
      A values[V];
      load_wide<V, T>(sum.from, row * sum.columns + column, values);
#pragma unroll
      for (int k = 0; k < V; ++k) total[k] += values[k];
    }
  }
  // Neighbours in shared memory are the neighbours of a warp: no two of its threads meet in a bank.
#pragma unroll
  for (int k = 0; k < V; ++k) sums[y][k * kAcross + x] = total[k];
  __syncthreads();
  for (int c = y * kAcross + x; c < kAcross * V; c += kAcross * kDown) {
    A all = 0;
#pragma unroll
    for (int each = 0; each < kDown; ++each) all += sums[each][c];
    const int64_t at = first + (c % kAcross) * V + c / kAcross;
    if (at >= sum.columns) continue;
    if (sum.parts == 1)
      store_number(sum.to, sum.to_type, at, all);
    else
      static_cast<A*>(sum.partials)[blockIdx.y * sum.columns + at] = all;
  }
}

template <class T>
void launch_sum(const ColumnSum& sum, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  const dim3 block(kAcross, kDown);
  const auto grid = [&](int pack) {
    return dim3(static_cast<unsigned>((sum.columns + kAcross * pack - 1) / (kAcross * pack)),
                static_cast<unsigned>(sum.parts));
  };
  if (sum.aligned && sum.columns % V == 0)
    column_sum_kernel<T, V><<<grid(V), block, 0, stream>>>(sum);
  else
    column_sum_kernel<T, 1><<<grid(1), block, 0, stream>>>(sum);
  if (sum.parts > 1)
    launch_finish(static_cast<const Wide<T>*>(sum.partials), sum.parts, sum.columns, {{sum.to}, {sum.to_type}}, stream);
}

}  // namespace

int launch_column_sum(const ColumnSum& sum, CUstream_st* stream) {
  switch (sum.from_type) {
    case NumberType::kFloat:
      launch_sum<float>(sum, stream);
      break;
    case NumberType::kDouble:
      launch_sum<double>(sum, stream);
      break;
    case NumberType::kHalf:
      launch_sum<__half>(sum, stream);
      break;
    case NumberType::kBFloat16:
      launch_sum<__nv_bfloat16>(sum, stream);
      break;
    case NumberType::kNone:
      return static_cast<int>(cudaErrorInvalidValue);
  }
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
