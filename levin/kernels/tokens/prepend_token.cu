#include <algorithm>

#include "levin/kernels/number_switch.cuh"
#include "levin/kernels/packs.cuh"
#include "levin/kernels/tokens/prepend_token_launch.h"

namespace levin::kernels::detail {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 4;   // images of a thread that are on their way together
constexpr int kImages = 8;  // of a thread of forward

/// Calls each(image, pack) for images [begin, end), whose packs are loaded some at a time.
template <class T, int V, class F>
__device__ __forceinline__ void each_image(const void* from, int64_t at, int64_t stride, int64_t begin, int64_t end,
                                           F&& each) {
  int64_t image = begin;
  for (; image + kAhead <= end; image += kAhead) {
    Pack<T, V> packs[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) packs[i] = load<T, V>(from, (image + i) * stride + at);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) each(image + i, packs[i]);
  }
  for (; image < end; ++image) each(image, load<T, V>(from, image * stride + at));
}

/// The images of part blockIdx.y.
struct ImageRange {
  int64_t begin, end;

  __device__ __forceinline__ ImageRange(int64_t images, int64_t parts) {
    const int64_t per_part = (images + parts - 1) / parts;
    begin = per_part * blockIdx.y;
    end = begin + per_part < images ? begin + per_part : images;
  }
};

/// Where V neighbours of an image begin that are this thread's.
template <int V>
__device__ __forceinline__ int64_t place_of_thread() {
  return (static_cast<int64_t>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * V;
}

/// A thread has V neighbours of some images: the position is read once.
template <class P, class O, int V>
__global__ void __launch_bounds__(kThreads) prepend_token_kernel(const TokenForward given) {
  using A = Wide<O>;
  const int64_t columns = given.sizes.columns, stride = given.sizes.tokens * columns, at = place_of_thread<V>();
  if (at >= stride) return;
  const ImageRange range(given.sizes.images, gridDim.y);
  A position[V];
  load_any<V>(given.positions, given.positions_type, at, given.parameters_aligned, position);
  if (at < columns) {
    A sum[V];
    load_any<V>(given.token, given.token_type, at, given.parameters_aligned, sum);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += position[k];
    for (int64_t image = range.begin; image < range.end; ++image)
      store_packed<O, V>(given.out, image * stride + at, sum);
    return;
  }
  each_image<P, V>(given.patches, at - columns, stride - columns, range.begin, range.end,
                   [&](int64_t image, const Pack<P, V>& pack) {
                     A sum[V];
                     unpack<P, V>(pack, sum);
#pragma unroll
                     for (int k = 0; k < V; ++k) sum[k] += position[k];
                     store_packed<O, V>(given.out, image * stride + at, sum);
                   });
}

/// A thread has V neighbours of the images of a part, and adds them up. Four blocks of a multiprocessor fill it.
template <class P, class G, int V>
__global__ void __launch_bounds__(kThreads, 4) prepend_token_backward_kernel(const TokenBackward given) {
  using A = Wide<G>;
  let_next_start();
  const int64_t columns = given.sizes.columns, stride = given.sizes.tokens * columns, at = place_of_thread<V>();
  if (at >= stride) return;
  const ImageRange range(given.sizes.images, given.parts);
  const bool is_patch = at >= columns && given.patches != nullptr;
  A total[V] = {};
  each_image<G, V>(given.grad, at, stride, range.begin, range.end, [&](int64_t image, const Pack<G, V>& pack) {
    A values[V];
    unpack<G, V>(pack, values);
#pragma unroll
    for (int k = 0; k < V; ++k) total[k] += values[k];
    if (is_patch) store_packed<P, V>(given.patches, image * (stride - columns) + at - columns, values);
  });
  if (given.partials != nullptr) store_packed<A, V>(given.partials, blockIdx.y * stride + at, total);
}

/// Adds the parts up; columns of patches, too. It is launched early: the kernel before it lets it start.
template <class A>
__global__ void __launch_bounds__(kFinishColumns* kFinishRows) prepend_token_sums_kernel(const TokenBackward given) {
  __shared__ A shared[kFinishRows][kFinishColumns];
  wait_for_previous();
  const A* partials = static_cast<const A*>(given.partials);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t columns = given.sizes.columns, column = static_cast<int64_t>(blockIdx.x) * kFinishColumns + x;
  A below = 0;
  if (column < columns)
    for (int64_t row = y; row < given.sizes.tokens; row += kFinishRows) {
      A sum = 0;
#pragma unroll 4
      for (int64_t part = 0; part < given.parts; ++part)
        sum += partials[(part * given.sizes.tokens + row) * columns + column];
      if (given.positions != nullptr) store_number(given.positions, given.positions_type, row * columns + column, sum);
      if (row > 0)
        below += sum;
      else if (given.token != nullptr)
        store_number(given.token, given.token_type, column, sum);
    }
  if (given.sums == nullptr) return;
  shared[y][x] = below;
  __syncthreads();
#pragma unroll
  for (int half = kFinishRows / 2; half > 0; half /= 2) {
    if (y < half) shared[y][x] += shared[y + half][x];
    __syncthreads();
  }
  if (y == 0 && column < columns) store_number(given.sums, given.sums_type, column, shared[0][x]);
}

dim3 grid_of(const TokenSizes& sizes, int pack, int64_t parts) {
  const int64_t packs = sizes.tokens * sizes.columns / pack;
  return dim3(static_cast<unsigned>((packs + kThreads - 1) / kThreads), static_cast<unsigned>(parts));
}

template <class P, class O>
void launch_forward(const TokenForward& given, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(O);
  const int64_t parts = std::min<int64_t>((given.sizes.images + kImages - 1) / kImages, 65535);
  if (given.aligned && given.sizes.columns % V == 0)
    prepend_token_kernel<P, O, V><<<grid_of(given.sizes, V, parts), kThreads, 0, stream>>>(given);
  else
    prepend_token_kernel<P, O, 1><<<grid_of(given.sizes, 1, parts), kThreads, 0, stream>>>(given);
}

template <class P, class G>
void launch_backward(const TokenBackward& given, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(G);
  if (given.aligned && given.sizes.columns % V == 0)
    prepend_token_backward_kernel<P, G, V><<<grid_of(given.sizes, V, given.parts), kThreads, 0, stream>>>(given);
  else
    prepend_token_backward_kernel<P, G, 1><<<grid_of(given.sizes, 1, given.parts), kThreads, 0, stream>>>(given);
  if (given.partials == nullptr) return;
  const auto blocks = static_cast<unsigned>((given.sizes.columns + kFinishColumns - 1) / kFinishColumns);
  launch_early(prepend_token_sums_kernel<Wide<G>>, {blocks, dim3(kFinishColumns, kFinishRows)}, stream, given);
}

/// Calls f with the types of patches and result; false where there is no kernel for them.
template <class F>
bool with_token_types(NumberType patches, NumberType out, F&& f) {
  if (!token_kernel_knows(patches, out)) return false;
  if (out == NumberType::kDouble) {
    f(NumberOf<double>(), NumberOf<double>());
    return true;
  }
  return with_number(patches, [&](auto p) {
    if (out == NumberType::kFloat)
      f(p, NumberOf<float>());
    else
      f(p, p);
  });
}

}  // namespace

int launch_token_forward(const TokenForward& given, CUstream_st* stream) {
  const bool known = with_token_types(given.patches_type, given.out_type, [&](auto p, auto o) {
    launch_forward<typename decltype(p)::type, typename decltype(o)::type>(given, stream);
  });
  return static_cast<int>(known ? cudaGetLastError() : cudaErrorInvalidValue);
}

int launch_token_backward(const TokenBackward& given, CUstream_st* stream) {
  const bool known = with_token_types(given.patches_type, given.grad_type, [&](auto p, auto g) {
    launch_backward<typename decltype(p)::type, typename decltype(g)::type>(given, stream);
  });
  return static_cast<int>(known ? cudaGetLastError() : cudaErrorInvalidValue);
}

}  // namespace levin::kernels::detail
