#include <cstdio>

#include "levin/kernels/embedding/embedding_launch.h"
#include "levin/kernels/number_switch.cuh"
#include "levin/kernels/packs.cuh"

// The gradient of a table of embeddings: ids are sorted, and every row of the table adds up the run of its id. A run
// that lies in one tile of 32 sorted ids is added up by the warp that writes the row. Of longer ones each tile adds up
// its piece first, and a block joins them. Everything is added in an order that depends on the ids alone.
namespace levin::kernels::detail {
namespace {

constexpr int kWarp = 32, kKeyThreads = 256, kTileWarps = 4, kRowWarps = 8;
static_assert(kEmbeddingTile == kWarp, "a lane has an id of the tile");
constexpr unsigned kAll = 0xffffffffu;

__global__ void __launch_bounds__(kKeyThreads) embedding_keys_kernel(const EmbeddingKeys given) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kKeyThreads + threadIdx.x;
  if (at >= given.count) return;
  const int64_t id =
      given.wide ? static_cast<const int64_t*>(given.ids)[at] : static_cast<const int32_t*>(given.ids)[at];
  given.keys[at] = id == given.padding ? given.rows : static_cast<int32_t>(id);
  given.places[at] = static_cast<int32_t>(at);
}

/// Adds up rows of the gradient, those of lanes first to first + length, in their order. `inside`: this lane has
/// columns.
template <class T, int V>
__device__ __forceinline__ void add_rows(const EmbeddingLaunch& launch, int place, int first, int length,
                                         int64_t column, bool inside, float (&total)[V]) {
#pragma unroll 4
  for (int i = first; i < first + length; ++i) {
    const int64_t row = __shfl_sync(kAll, place, i);
    if (!inside) continue;
    float values[V];
    load_wide<V, T>(launch.grad, row * launch.columns + column, values);
#pragma unroll
    for (int k = 0; k < V; ++k) total[k] += values[k];
  }
}

/// Numbers of a row of the table, or what they grow by.
template <class T, int V>
__device__ __forceinline__ void put_row(const EmbeddingLaunch& launch, int64_t at, float (&total)[V]) {
  if (launch.add) {
    float before[V];
    load_wide<V, T>(launch.out, at, before);
#pragma unroll
    for (int k = 0; k < V; ++k) total[k] += before[k];
  }
  store_packed<T, V>(launch.out, at, total);
}

// ---- pieces of runs over several tiles

/// A warp has a tile, and the columns of strip blockIdx.y.
template <class T, int V>
__global__ void __launch_bounds__(kWarp* kTileWarps) embedding_pieces_kernel(const EmbeddingLaunch launch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kTileWarps + warp, begin = tile * kWarp;
  if (begin >= launch.count) return;
  const int count = launch.count - begin < kWarp ? static_cast<int>(launch.count - begin) : kWarp;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kWarp + lane) * V;
  const bool inside = column < launch.columns;
  const int key = lane < count ? launch.keys[begin + lane] : -1;
  const int place = lane < count ? launch.places[begin + lane] : 0;
  const int first_key = __shfl_sync(kAll, key, 0), last_key = __shfl_sync(kAll, key, count - 1);
  // Lanes whose id is that of the first, or the last: neighbours, since ids are sorted.
  const int of_first = __popc(__ballot_sync(kAll, key == first_key));
  const int of_last = __popc(__ballot_sync(kAll, key == last_key));
  const bool continues = begin > 0 && launch.keys[begin - 1] == first_key && first_key < launch.rows;
  const bool has_next =
      begin + kWarp < launch.count && launch.keys[begin + kWarp] == last_key && last_key < launch.rows;
  if (continues) {
    float total[V] = {};
    add_rows<T, V>(launch, place, 0, of_first, column, inside, total);
    if (inside) store_packed<float, V>(launch.heads, tile * launch.columns + column, total);
  }
  if (has_next && !(continues && first_key == last_key)) {
    float total[V] = {};
    add_rows<T, V>(launch, place, count - of_last, of_last, column, inside, total);
    if (inside) store_packed<float, V>(launch.tails, tile * launch.columns + column, total);
  }
}

// ---- rows of the table

/// How many of the sorted keys are less than `key`: 32 at once.
__device__ __forceinline__ int first_not_less(const int32_t* keys, int count, int key, int lane) {
  int low = 0, high = count;
  while (low < high) {
    const int step = (high - low + kWarp - 1) / kWarp;
    const int64_t at = low + static_cast<int64_t>(lane) * step;
    const int less = __popc(__ballot_sync(kAll, at < high && keys[at] < key));
    if (less == 0) break;
    const int64_t next = low + static_cast<int64_t>(less) * step;
    low += (less - 1) * step + 1;
    high = next < high ? static_cast<int>(next) : high;
  }
  return low;
}

/// Joins the pieces of the run that begins in `tile` and continues in the next, if there is one: all warps add up some,
/// then the first adds up their sums.
template <class T, int V>
__device__ __forceinline__ void join_pieces(const EmbeddingLaunch& launch, int64_t tile, int64_t strip) {
  __shared__ float shared[kRowWarps][kWarp * V];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t begin = tile * kWarp, next = begin + kWarp;
  if (next >= launch.count) return;
  const int key = launch.keys[next - 1];
  if (launch.keys[next] != key || key >= launch.rows || (begin > 0 && launch.keys[begin - 1] == key)) return;
  const auto rest = static_cast<int>(launch.count - next);
  const int64_t last = (next + first_not_less(launch.keys + next, rest, key + 1, lane) - 1) / kWarp;
  const int64_t column = (strip * kWarp + lane) * V;
  const bool inside = column < launch.columns;
  float total[V] = {};
  if (inside) {
#pragma unroll 8
    for (int64_t piece = tile + warp; piece <= last; piece += kRowWarps) {
      float values[V];
      load_wide<V, float>(piece == tile ? launch.tails : launch.heads, piece * launch.columns + column, values);
#pragma unroll
      for (int k = 0; k < V; ++k) total[k] += values[k];
    }
  }
#pragma unroll
  for (int k = 0; k < V; ++k) shared[warp][k * kWarp + lane] = total[k];
  __syncthreads();
  if (warp != 0 || !inside) return;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    total[k] = 0;
#pragma unroll
    for (int each = 0; each < kRowWarps; ++each) total[k] += shared[each][k * kWarp + lane];
  }
  put_row<T, V>(launch, key * launch.columns + column, total);
}

/// The first blocks have a strip of columns of a tile each, for runs that begin there and are long. In the others a
/// warp has a row.
template <class T, int V>
__global__ void __launch_bounds__(kWarp* kRowWarps)
    embedding_rows_kernel(const EmbeddingLaunch launch, const unsigned strips, const unsigned joins) {
  if (blockIdx.x < joins) return join_pieces<T, V>(launch, blockIdx.x / strips, blockIdx.x % strips);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x - joins) * kRowWarps + warp;
  if (row >= launch.rows) return;
  const int key = static_cast<int>(row), begin = first_not_less(launch.keys, launch.count, key, lane);
  const int length = first_not_less(launch.keys + begin, launch.count - begin, key + 1, lane);
  if (length == 0 && launch.add) return;
  if (length > 0 && begin / kWarp != (begin + length - 1) / kWarp) return;  // a long run
  const int place = lane < length ? launch.places[begin + lane] : 0;
  for (unsigned strip = 0; strip < strips; ++strip) {
    const int64_t column = (static_cast<int64_t>(strip) * kWarp + lane) * V;
    const bool inside = column < launch.columns;
    float total[V] = {};
    add_rows<T, V>(launch, place, 0, length, column, inside, total);
    if (inside) put_row<T, V>(launch, row * launch.columns + column, total);
  }
}

template <class T, int V>
void launch_packs(const EmbeddingLaunch& launch, cudaStream_t stream) {
  const auto strips = static_cast<unsigned>((launch.columns + kWarp * V - 1) / (kWarp * V));
  const auto tiles = static_cast<unsigned>(embedding_tiles(launch.count));
  const dim3 pieces((tiles + kTileWarps - 1) / kTileWarps, strips);
  embedding_pieces_kernel<T, V><<<pieces, kWarp * kTileWarps, 0, stream>>>(launch);
  const unsigned joins = tiles * strips, rows = (static_cast<unsigned>(launch.rows) + kRowWarps - 1) / kRowWarps;
  embedding_rows_kernel<T, V><<<joins + rows, kWarp * kRowWarps, 0, stream>>>(launch, strips, joins);
}

template <class T>
void launch_typed(const EmbeddingLaunch& launch, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  const bool wide = launch.columns % V == 0 && is_pack_aligned(launch.grad) && is_pack_aligned(launch.out) &&
                    is_pack_aligned(launch.heads) && is_pack_aligned(launch.tails);
  if (wide)
    launch_packs<T, V>(launch, stream);
  else
    launch_packs<T, 1>(launch, stream);
}

// ---- forward, with positions

__device__ void refuse(int64_t id, int64_t rows) {
  printf("[embedding] id %lld is not in 0 to %lld\n", static_cast<long long>(id), static_cast<long long>(rows) - 1);
  __trap();
}

/// A warp for each id.
template <class T, int V>
__global__ void __launch_bounds__(kWarp* kRowWarps) embedding_sum_kernel(const EmbeddingSumLaunch launch) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (at >= launch.count) return;
  const int64_t id =
      launch.wide ? static_cast<const int64_t*>(launch.ids)[at] : static_cast<const int32_t*>(launch.ids)[at];
  if (id < 0 || id >= launch.rows) refuse(id, launch.rows);
  const int64_t from = id * launch.columns, position = at % launch.length * launch.columns, to = at * launch.columns;
#pragma unroll 4
  for (int64_t column = threadIdx.x % kWarp * V; column < launch.columns; column += kWarp * V) {
    float values[V], others[V];
    load_wide<V, T>(launch.weight, from + column, values);
    load_wide<V, T>(launch.positions, position + column, others);
#pragma unroll
    for (int k = 0; k < V; ++k) values[k] += others[k];
    store_packed<T, V>(launch.out, to + column, values);
  }
}

template <class T>
void launch_sum_typed(const EmbeddingSumLaunch& launch, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  const bool wide = launch.columns % V == 0 && is_pack_aligned(launch.weight) && is_pack_aligned(launch.positions) &&
                    is_pack_aligned(launch.out);
  const auto blocks = static_cast<unsigned>((launch.count + kRowWarps - 1) / kRowWarps);
  const auto kernel = wide ? embedding_sum_kernel<T, V> : embedding_sum_kernel<T, 1>;
  kernel<<<blocks, kWarp * kRowWarps, 0, stream>>>(launch);
}

}  // namespace

int launch_embedding_sum(const EmbeddingSumLaunch& launch, CUstream_st* stream) {
  return launch_for_number(launch.type,
                           [&](auto number) { launch_sum_typed<typename decltype(number)::type>(launch, stream); });
}

int launch_embedding_keys(const EmbeddingKeys& keys, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>((static_cast<int64_t>(keys.count) + kKeyThreads - 1) / kKeyThreads);
  embedding_keys_kernel<<<blocks, kKeyThreads, 0, stream>>>(keys);
  return static_cast<int>(cudaGetLastError());
}

int launch_embedding_backward(const EmbeddingLaunch& launch, CUstream_st* stream) {
  return launch_for_number(launch.type,
                           [&](auto number) { launch_typed<typename decltype(number)::type>(launch, stream); });
}

}  // namespace levin::kernels::detail
