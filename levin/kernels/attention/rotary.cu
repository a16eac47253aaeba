#include "levin/kernels/attention/rotary_launch.h"
#include "levin/kernels/number_switch.cuh"
#include "levin/kernels/numbers.cuh"
#include "levin/kernels/packs.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kThreads = 256;

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) HeadPack {
  T values[kWidth];
};

/// A thread takes kWidth neighbours of the first half of a head, and those that belong to them in the second.
template <class T, int kWidth, bool kTurns, class Index>
__global__ void __launch_bounds__(kThreads) pack_heads_kernel(const PackHeadsLaunch launch, const Index items) {
  using Pack = HeadPack<T, kWidth>;
  const Index item = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= items) return;
  const Index half = static_cast<Index>(launch.size / 2), packs = half / kWidth;
  const Index heads = static_cast<Index>(launch.heads);
  const Index column = item % packs * kWidth, of_head = item / packs;
  const Index head = of_head % heads, of_part = of_head / heads;
  const Index part = of_part % 3, row = of_part / 3;
  const auto of = static_cast<int>(part);
  // No index into the arguments: it would copy them to local memory.
  const void* source = of == 0 ? launch.parts[0] : of == 1 ? launch.parts[1] : launch.parts[2];
  const int64_t stride = of == 0 ? launch.strides[0] : of == 1 ? launch.strides[1] : launch.strides[2];
  const int64_t inside = static_cast<int64_t>(head) * launch.size + static_cast<int64_t>(column);
  const T* from = static_cast<const T*>(source) + static_cast<int64_t>(row) * stride + inside;
  T* to = static_cast<T*>(launch.out) + static_cast<int64_t>(of_part) * launch.heads * launch.size + inside;
  Pack a = *reinterpret_cast<const Pack*>(from), b = *reinterpret_cast<const Pack*>(from + half);
  if (kTurns && of < 2) {
    const auto position = static_cast<int64_t>(row % static_cast<Index>(launch.length));
    const float* cosine = launch.angles + position * static_cast<int64_t>(half) + static_cast<int64_t>(column);
    const float* sine = cosine + static_cast<int64_t>(launch.length) * static_cast<int64_t>(half);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float c = __ldg(cosine + k), s = launch.inverse ? -__ldg(sine + k) : __ldg(sine + k);
      const float x = widened(a.values[k]), y = widened(b.values[k]);
      assign(a.values[k], x * c - y * s);
      assign(b.values[k], y * c + x * s);
    }
  }
  store_whole(reinterpret_cast<Pack*>(to), a);
  store_whole(reinterpret_cast<Pack*>(to + half), b);
}

template <class T, int kWidth, bool kTurns>
void launch_turning(const PackHeadsLaunch& launch, cudaStream_t stream) {
  const uint64_t items = static_cast<uint64_t>(launch.rows) * 3 * static_cast<uint64_t>(launch.heads) *
                         static_cast<uint64_t>(launch.size / 2 / kWidth);
  const auto blocks = static_cast<unsigned>((items + kThreads - 1) / kThreads);
  // Division of 64 bits is slow.
  if (items < (uint64_t{1} << 31))
    pack_heads_kernel<T, kWidth, kTurns, uint32_t>
        <<<blocks, kThreads, 0, stream>>>(launch, static_cast<uint32_t>(items));
  else
    pack_heads_kernel<T, kWidth, kTurns, uint64_t><<<blocks, kThreads, 0, stream>>>(launch, items);
}

template <class T, int kWidth>
void launch_wide(const PackHeadsLaunch& launch, cudaStream_t stream) {
  if (launch.angles != nullptr)
    launch_turning<T, kWidth, true>(launch, stream);
  else
    launch_turning<T, kWidth, false>(launch, stream);
}

template <class T>
void launch_heads(const PackHeadsLaunch& launch, cudaStream_t stream) {
  const auto fits = [&](int width) {
    const auto bytes = width * sizeof(T);
    bool all = launch.size / 2 % width == 0 && reinterpret_cast<uintptr_t>(launch.out) % bytes == 0;
    for (int i = 0; i < 3; ++i)
      all = all && launch.strides[i] % width == 0 && reinterpret_cast<uintptr_t>(launch.parts[i]) % bytes == 0;
    return all;
  };
  constexpr int kWidest = 16 / sizeof(T);
  if (fits(kWidest))
    launch_wide<T, kWidest>(launch, stream);
  else if (fits(kWidest / 2))
    launch_wide<T, kWidest / 2>(launch, stream);
  else
    launch_wide<T, 1>(launch, stream);
}

// ---- with sums of columns

constexpr int kAcross = 32, kDown = 8, kAhead = 8;  // four blocks of a multiprocessor fill it

/// A block goes through kAcross * V columns of slice blockIdx.y of the rows. A pack lies in one part.
template <class T, int V>
__global__ void __launch_bounds__(kAcross* kDown, 4) pack_sums_kernel(const PackSumsLaunch launch) {
  __shared__ float shared[kDown][kAcross * V];
  let_next_start();
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t size = launch.size, columns = 3 * size;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kAcross * V, column = first + x * V;
  const int64_t begin = launch.per_slice * blockIdx.y, rest = launch.rows - begin;
  const int64_t end = begin + (rest < launch.per_slice ? rest : launch.per_slice);
  float total[V] = {};
  if (column < columns) {
    const int part = column < size ? 0 : column < 2 * size ? 1 : 2;
    // No index into the arguments: it would copy them to local memory.
    const void* source = part == 0 ? launch.parts[0] : part == 1 ? launch.parts[1] : launch.parts[2];
    const T* from = static_cast<const T*>(source) + (column - part * size);
    T* to = static_cast<T*>(launch.out) + column;
    const auto move = [&](int64_t row, auto is_whole) {
      constexpr bool whole = decltype(is_whole)::value;
      Pack<T, V> packs[kAhead] = {};
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (whole || row + i * kDown < end) packs[i] = load<T, V>(from, (row + i * kDown) * size);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (whole || row + i * kDown < end) store<T, V>(to, (row + i * kDown) * columns, packs[i]);
        float values[V];
        unpack<T, V>(packs[i], values);
#pragma unroll
        for (int k = 0; k < V; ++k) total[k] += values[k];
      }
    };
    int64_t row = begin + y;
    for (; row + (kAhead - 1) * kDown < end; row += kAhead * kDown) move(row, std::true_type());
    if (row < end) move(row, std::false_type());
  }
  // Neighbours in shared memory are the neighbours of a warp: no two of its threads meet in a bank.
#pragma unroll
  for (int k = 0; k < V; ++k) shared[y][k * kAcross + x] = total[k];
  __syncthreads();
  const int c = y * kAcross + x;
  const int64_t at = first + (c % kAcross) * V + c / kAcross;
  if (c >= kAcross * V || at >= columns) return;
  float all = 0;
#pragma unroll
  for (int each = 0; each < kDown; ++each) all += shared[each][c];
  launch.partials[blockIdx.y * columns + at] = all;
}

template <class T, int V>
void launch_sums_of(const PackSumsLaunch& launch, cudaStream_t stream) {
  static_assert(V <= kDown, "a thread for each sum of a block");
  const int64_t columns = 3 * launch.size, across = (columns + kAcross * V - 1) / (kAcross * V);
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(launch.slices));
  pack_sums_kernel<T, V><<<grid, dim3(kAcross, kDown), 0, stream>>>(launch);
  launch_finish<float>(launch.partials, launch.slices, columns, {{launch.sums}, {launch.sums_type}}, stream);
}

template <class T>
void launch_sums(const PackSumsLaunch& launch, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  bool wide = launch.size % V == 0 && is_pack_aligned(launch.out);
  for (const void* part : launch.parts) wide = wide && is_pack_aligned(part);
  if (wide)
    launch_sums_of<T, V>(launch, stream);
  else
    launch_sums_of<T, 1>(launch, stream);
}

}  // namespace

int launch_pack_heads(const PackHeadsLaunch& launch, CUstream_st* stream) {
  return launch_for_number(launch.type,
                           [&](auto number) { launch_heads<typename decltype(number)::type>(launch, stream); });
}

int launch_pack_sums(const PackSumsLaunch& launch, CUstream_st* stream) {
  return launch_for_number(launch.type,
                           [&](auto number) { launch_sums<typename decltype(number)::type>(launch, stream); });
}

}  // namespace levin::kernels::detail
