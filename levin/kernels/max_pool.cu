#include <cuda_runtime.h>

#include "levin/kernels/max_pool_launch.h"
#include "levin/kernels/packs.cuh"

// A thread has one pixel and one vector of channels. A block has a tile of neighbouring pixels, that have in common
// what they read. Backward asks each window that holds a pixel whether it has chosen it: nothing is added in memory, so
// results repeat bit by bit.
namespace levin::kernels::detail {
namespace {

constexpr int kThreads = 256, kTileWidth = 8;

/// V bytes, one for each channel of a thread.
template <int V>
struct alignas(V) Bytes {
  uint8_t values[V];
};
template <>
struct alignas(8) Bytes<8> {
  uint32_t words[2];
};
template <>
struct Bytes<4> {
  uint32_t words[1];
};

template <int V>
__device__ __forceinline__ uint32_t byte_of(const Bytes<V>& bytes, int i) {
  if constexpr (V >= 4)
    return bytes.words[i / 4] >> (8 * (i % 4)) & 0xffu;
  else
    return bytes.values[i];
}

template <int V>
__device__ __forceinline__ Bytes<V> bytes_of(const uint32_t (&values)[V]) {
  Bytes<V> bytes;
  if constexpr (V >= 4) {
#pragma unroll
    for (int w = 0; w < V / 4; ++w)
      bytes.words[w] = values[4 * w] | values[4 * w + 1] << 8 | values[4 * w + 2] << 16 | values[4 * w + 3] << 24;
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) bytes.values[i] = static_cast<uint8_t>(values[i]);
  }
  return bytes;
}

struct Pixel {
  int64_t image;
  int64_t channel;
  int row, column;
  bool inside;
};

/// Of an image of height x width. Neighbouring threads have neighbouring channels.
__device__ Pixel pixel_of_thread(int height, int width, int64_t channels, int columns, int vector) {
  const int tile_height = kThreads / (columns * kTileWidth);
  const unsigned tiles_x = (width + kTileWidth - 1) / kTileWidth, tiles_y = (height + tile_height - 1) / tile_height;
  const auto strips = static_cast<unsigned>((channels + columns * vector - 1) / (columns * vector));
  unsigned block = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), place = thread / columns;
  Pixel pixel;
  // Strips first: the blocks that run together read whole pixels.
  pixel.channel = (static_cast<int64_t>(block % strips) * columns + thread % columns) * vector;
  block /= strips;
  pixel.column = static_cast<int>(block % tiles_x) * kTileWidth + place % kTileWidth;
  block /= tiles_x;
  pixel.row = static_cast<int>(block % tiles_y) * tile_height + place / kTileWidth;
  pixel.image = block / tiles_y;
  pixel.inside = pixel.channel < channels && pixel.row < height && pixel.column < width;
  return pixel;
}

/// kSize is the size of a square window that is known here, or 0.
template <class T, int V, int kSize>
__global__ void __launch_bounds__(kThreads) max_pool_kernel(const __grid_constant__ MaxPoolLaunch p, int columns) {
  using A = Wide<T>;
  const Pixel pixel = pixel_of_thread(p.out_height, p.out_width, p.channels, columns, V);
  if (!pixel.inside) return;
  const int height = kSize > 0 ? kSize : p.kernel_height, width = kSize > 0 ? kSize : p.kernel_width;
  const int top = pixel.row * p.stride_height - p.padding_height,
            left = pixel.column * p.stride_width - p.padding_width;
  const T* __restrict__ image = static_cast<const T*>(p.in) + pixel.image * p.height * p.width * p.channels;
  A most[V];
  uint32_t chosen[V];
  // Where all are minus infinity, the first pixel inside.
  const int first = max(-top, 0) * width + max(-left, 0);
#pragma unroll
  for (int i = 0; i < V; ++i) most[i] = -INFINITY, chosen[i] = first;
  const auto look = [&](int row, int column) {
    const int y = top + row, x = left + column;
    if (y < 0 || y >= p.height || x < 0 || x >= p.width) return;
    A values[V];
    load_wide<V, T>(image, (static_cast<int64_t>(y) * p.width + x) * p.channels + pixel.channel, values);
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (values[i] > most[i] || values[i] != values[i]) most[i] = values[i], chosen[i] = row * width + column;
  };
  if constexpr (kSize > 0) {
#pragma unroll
    for (int row = 0; row < kSize; ++row)
#pragma unroll
      for (int column = 0; column < kSize; ++column) look(row, column);
  } else {
    for (int row = 0; row < height; ++row)
      for (int column = 0; column < width; ++column) look(row, column);
  }
  const int64_t at =
      ((pixel.image * p.out_height + pixel.row) * p.out_width + pixel.column) * p.channels + pixel.channel;
  store_packed<T, V>(p.out, at, most);
  *reinterpret_cast<Bytes<V>*>(p.chosen + at) = bytes_of<V>(chosen);
}

/// The windows that hold a coordinate: [first, last].
struct Windows {
  __device__ Windows(int coordinate, int padding, int kernel, int stride, int count) {
    const int padded = coordinate + padding;
    first = padded < kernel ? 0 : (padded - kernel) / stride + 1;
    last = min(padded / stride, count - 1);
  }
  int first, last;
};

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    max_pool_backward_kernel(const __grid_constant__ MaxPoolLaunch p, int columns) {
  using A = Wide<T>;
  const Pixel pixel = pixel_of_thread(p.height, p.width, p.channels, columns, V);
  if (!pixel.inside) return;
  A sum[V];
#pragma unroll
  for (int i = 0; i < V; ++i) sum[i] = A(0);
  const Windows ys(pixel.row, p.padding_height, p.kernel_height, p.stride_height, p.out_height);
  const Windows xs(pixel.column, p.padding_width, p.kernel_width, p.stride_width, p.out_width);
  for (int y = ys.first; y <= ys.last; ++y)
    for (int x = xs.first; x <= xs.last; ++x) {
      const int64_t at = ((pixel.image * p.out_height + y) * p.out_width + x) * p.channels + pixel.channel;
      const auto chosen = *reinterpret_cast<const Bytes<V>*>(p.chosen + at);
      A grads[V];
      load_wide<V, T>(p.out, at, grads);
      const auto mine = static_cast<uint32_t>((pixel.row + p.padding_height - y * p.stride_height) * p.kernel_width +
                                              (pixel.column + p.padding_width - x * p.stride_width));
#pragma unroll
      for (int i = 0; i < V; ++i)
        if (byte_of<V>(chosen, i) == mine) sum[i] += grads[i];
    }
  const int64_t at = ((pixel.image * p.height + pixel.row) * p.width + pixel.column) * p.channels + pixel.channel;
  store_packed<T, V>(p.in, at, sum);
}

/// Patches of kStride x kStride pixels that lie in the same windows.
int patches_along(int size, int padding, int stride) {
  return (size - 1 + padding) / stride + 1;
}

/// The same for square windows whose size and stride are known here. A thread has a patch, and reads each window once
/// for all of its pixels. With the padding a patch begins at a multiple of the stride.
template <class T, int V, int kSize, int kStride>
__global__ void __launch_bounds__(kThreads)
    max_pool_patch_backward_kernel(const __grid_constant__ MaxPoolLaunch p, int columns, int rows_of_patches,
                                   int columns_of_patches) {
  using A = Wide<T>;
  constexpr int kReach = (kSize + kStride - 1) / kStride;
  const Pixel patch = pixel_of_thread(rows_of_patches, columns_of_patches, p.channels, columns, V);
  if (!patch.inside) return;
  Pack<T, V> grads[kReach][kReach];
  Bytes<V> chosen[kReach][kReach];
  bool is_window[kReach][kReach];
#pragma unroll
  for (int a = 0; a < kReach; ++a)
#pragma unroll
    for (int b = 0; b < kReach; ++b) {
      const int y = patch.row - a, x = patch.column - b;
      is_window[a][b] = y >= 0 && y < p.out_height && x >= 0 && x < p.out_width;
      if (!is_window[a][b]) continue;
      const int64_t at = ((patch.image * p.out_height + y) * p.out_width + x) * p.channels + patch.channel;
      chosen[a][b] = *reinterpret_cast<const Bytes<V>*>(p.chosen + at);
      grads[a][b] = load<T, V>(p.out, at);
    }
#pragma unroll
  for (int u = 0; u < kStride; ++u)
#pragma unroll
    for (int v = 0; v < kStride; ++v) {
      const int row = patch.row * kStride + u - p.padding_height, column = patch.column * kStride + v - p.padding_width;
      if (row < 0 || row >= p.height || column < 0 || column >= p.width) continue;
      A sum[V];
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] = A(0);
#pragma unroll
      for (int a = 0; a < kReach; ++a)
#pragma unroll
        for (int b = 0; b < kReach; ++b) {
          const int in_row = a * kStride + u, in_column = b * kStride + v;  // where the pixel stands in the window
          if (in_row >= kSize || in_column >= kSize || !is_window[a][b]) continue;
          A values[V];
          unpack<T, V>(grads[a][b], values);
#pragma unroll
          for (int i = 0; i < V; ++i)
            if (byte_of<V>(chosen[a][b], i) == in_row * kSize + in_column) sum[i] += values[i];
        }
      const int64_t at = ((patch.image * p.height + row) * p.width + column) * p.channels + patch.channel;
      store_packed<T, V>(p.in, at, sum);
    }
}

template <class T>
struct PoolType {
  using type = T;
};
template <int N>
struct PoolNumber {
  static constexpr int value = N;
};

/// Calls f(dtype, channels of a thread, threads beside each other, blocks).
template <class F>
int with_tiles(const MaxPoolLaunch& p, int height, int width, const F& f) {
  const auto call = [&](auto type, auto vector) {
    constexpr int V = decltype(vector)::value;
    int columns = 1;
    while (columns < (V > 1 ? 8 : 32) && columns * V < p.channels) columns *= 2;
    const int64_t tile_height = kThreads / (columns * kTileWidth), strip = columns * V;
    const int64_t blocks = p.images * ((height + tile_height - 1) / tile_height) *
                           ((width + kTileWidth - 1) / kTileWidth) * ((p.channels + strip - 1) / strip);
    f(type, vector, columns, static_cast<unsigned>(blocks));
  };
  const auto with = [&](auto type, auto vector) { p.vectors ? call(type, vector) : call(type, PoolNumber<1>()); };
  switch (p.type) {
    case NumberType::kFloat:
      with(PoolType<float>(), PoolNumber<4>());
      break;
    case NumberType::kDouble:
      with(PoolType<double>(), PoolNumber<2>());
      break;
    case NumberType::kHalf:
      with(PoolType<__half>(), PoolNumber<8>());
      break;
    case NumberType::kBFloat16:
      with(PoolType<__nv_bfloat16>(), PoolNumber<8>());
      break;
    case NumberType::kNone:
      break;
  }
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

int launch_max_pool(const MaxPoolLaunch& p, CUstream_st* stream) {
  return with_tiles(p, p.out_height, p.out_width, [&](auto type, auto vector, int columns, unsigned blocks) {
    using T = typename decltype(type)::type;
    constexpr int V = decltype(vector)::value;
    const bool is_square = p.kernel_height == p.kernel_width;
    const auto kernel = is_square && p.kernel_height == 3   ? max_pool_kernel<T, V, 3>
                        : is_square && p.kernel_height == 2 ? max_pool_kernel<T, V, 2>
                                                            : max_pool_kernel<T, V, 0>;
    kernel<<<blocks, kThreads, 0, stream>>>(p, columns);
  });
}

int launch_max_pool_backward(const MaxPoolLaunch& p, CUstream_st* stream) {
  const bool is_square = p.kernel_height == p.kernel_width && p.stride_height == 2 && p.stride_width == 2;
  if (is_square && (p.kernel_height == 3 || p.kernel_height == 2)) {
    const int rows = patches_along(p.height, p.padding_height, 2), columns = patches_along(p.width, p.padding_width, 2);
    return with_tiles(p, rows, columns, [&](auto type, auto vector, int threads_beside, unsigned blocks) {
      using T = typename decltype(type)::type;
      constexpr int V = decltype(vector)::value;
      const auto kernel = p.kernel_height == 3 ? max_pool_patch_backward_kernel<T, V, 3, 2>
                                               : max_pool_patch_backward_kernel<T, V, 2, 2>;
      kernel<<<blocks, kThreads, 0, stream>>>(p, threads_beside, rows, columns);
    });
  }
  return with_tiles(p, p.height, p.width, [&](auto type, auto vector, int columns, unsigned blocks) {
    using T = typename decltype(type)::type;
    constexpr int V = decltype(vector)::value;
    max_pool_backward_kernel<T, V><<<blocks, kThreads, 0, stream>>>(p, columns);
  });
}

}  // namespace levin::kernels::detail
