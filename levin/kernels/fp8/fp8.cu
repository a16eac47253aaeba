#include <cfloat>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "levin/kernels/activation_device.cuh"
#include "levin/kernels/fp8/fp8_launch.h"
#include "levin/kernels/packs.cuh"

namespace levin::kernels::detail {
namespace {

// A block takes a tile of 64 x 128 numbers; a thread takes 4 rows x 8 columns of it, 16 bytes of bfloat16 at a time.
constexpr int kThreads = 256;
constexpr int kTileRows = kFp8TileRows;
constexpr int kTileColumns = 128;
constexpr int kTall = 4;
constexpr int kWide = 8;
constexpr int kAcross = kTileColumns / kWide;  // 16 threads side by side
constexpr int kWords = kTileRows / kTall;      // words of 4 codes in a column of the tile
static_assert(kAcross * kWords == kThreads && kAcross == 16 && kWords == 16);

// 8 neighbours as they come from memory: what waits in registers for its turn should be small.
template <class From>
struct Eight {
  uint4 words[sizeof(From) / 2];
};

template <class From>
__device__ Eight<From> load_8(const From* from) {
  Eight<From> raw;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(From) / 2); ++i) raw.words[i] = reinterpret_cast<const uint4*>(from)[i];
  return raw;
}

__device__ void unpack(const Eight<float>& raw, float (&out)[kWide]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    out[4 * i] = __uint_as_float(raw.words[i].x), out[4 * i + 1] = __uint_as_float(raw.words[i].y);
    out[4 * i + 2] = __uint_as_float(raw.words[i].z), out[4 * i + 3] = __uint_as_float(raw.words[i].w);
  }
}
template <class From>
__device__ void unpack(const Eight<From>& raw, float (&out)[kWide]) {
  const uint32_t pairs[4] = {raw.words[0].x, raw.words[0].y, raw.words[0].z, raw.words[0].w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 both = unpacked<From>(pairs[i]);
    out[2 * i] = both.x, out[2 * i + 1] = both.y;
  }
}

__device__ bool is_finite(float x) {
  return fabsf(x) <= FLT_MAX;
}
// Numbers that are not finite make no scale.
__device__ float size_of(float x) {
  return is_finite(x) ? fabsf(x) : 0.0f;
}

// The largest finite size. The conversion to float8 makes inf the largest number, but it must stay visible: it becomes
// nan here. fmaxf passes over nan, so inf is found where it is the largest.
__device__ float largest_of(float (&values)[kWide]) {
  float most = 0.0f;
#pragma unroll
  for (int j = 0; j < kWide; ++j) most = fmaxf(most, fabsf(values[j]));
  if (most <= FLT_MAX) return most;
  most = 0.0f;
#pragma unroll
  for (int j = 0; j < kWide; ++j) {
    most = fmaxf(most, size_of(values[j]));
    if (!is_finite(values[j])) values[j] = __int_as_float(0x7fffffff);
  }
  return most;
}

// The power of two that brings amax just below the largest number of float8. Neither it nor its inverse is subnormal.
__device__ float scale_of(float amax, float largest, int margin) {
  if (!(amax > 0.0f) || !is_finite(amax)) return 1.0f;
  const float ratio = largest / amax;
  int exponent = is_finite(ratio) ? (__float_as_int(ratio) >> 23) - 127 : 126;
  exponent = min(max(exponent - margin, -126), 126);
  return __int_as_float((exponent + 127) << 23);
}
__device__ float inverse_of(float scale) {
  return __int_as_float((254 << 23) - __float_as_int(scale));
}

template <bool kE5m2>
struct Format;
template <>
struct Format<false> {
  static constexpr __nv_fp8_interpretation_t kKind = __NV_E4M3;
  static constexpr float kLargest = 448.0f;
};
template <>
struct Format<true> {
  static constexpr __nv_fp8_interpretation_t kKind = __NV_E5M2;
  static constexpr float kLargest = 57344.0f;
};

template <bool kE5m2>
__device__ unsigned int codes_of(float a, float b, float c, float d) {
  const unsigned int low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, Format<kE5m2>::kKind);
  const unsigned int high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, Format<kE5m2>::kKind);
  return low | (high << 16);
}

// 4 words of 4 codes, rows to columns.
__device__ void transpose_codes(const unsigned int (&in)[4], unsigned int* out) {
  const unsigned int low_01 = __byte_perm(in[0], in[1], 0x5140), high_01 = __byte_perm(in[0], in[1], 0x7362);
  const unsigned int low_23 = __byte_perm(in[2], in[3], 0x5140), high_23 = __byte_perm(in[2], in[3], 0x7362);
  out[0] = __byte_perm(low_01, low_23, 0x5410);
  out[1] = __byte_perm(low_01, low_23, 0x7632);
  out[2] = __byte_perm(high_01, high_23, 0x5410);
  out[3] = __byte_perm(high_01, high_23, 0x7632);
}

// Sizes are not negative, so their bits are in the order of their values; a maximum is the same in any order.
__device__ void raise(float* to, float value) {
  if (value > 0.0f) atomicMax(reinterpret_cast<unsigned int*>(to), __float_as_uint(value));
}

__device__ void raise_from_block(float* to, float value) {
  __shared__ float parts[kThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 1; i < kThreads / 32; ++i) value = fmaxf(value, parts[i]);
    raise(to, value);
  }
}

struct Place {
  int64_t first_row, first_column;  // of the tile
  int across, down;                 // of the thread, in groups
  __device__ int64_t row() const { return first_row + down * kTall; }
  __device__ int64_t column() const { return first_column + across * kWide; }
};

__device__ Place place_of(int64_t columns) {
  const int64_t tiles = (columns + kTileColumns - 1) / kTileColumns;
  return {static_cast<int64_t>(blockIdx.x) / tiles * kTileRows, static_cast<int64_t>(blockIdx.x) % tiles * kTileColumns,
          static_cast<int>(threadIdx.x % kAcross), static_cast<int>(threadIdx.x / kAcross)};
}

// What lies outside of the matrix is 0.
template <class From>
__device__ void load_tile(const void* in, const Place& place, int64_t rows, int64_t columns,
                          Eight<From> (&raw)[kTall]) {
#pragma unroll
  for (int i = 0; i < kTall; ++i) {
    const int64_t row = place.row() + i;
    raw[i] = row < rows && place.column() < columns
                 ? load_8(static_cast<const From*>(in) + row * columns + place.column())
                 : Eight<From>{};
  }
}

// Rounded to bfloat16, as kernels of their own would leave it in memory.
template <ActivationKind kKind, bool kDerivative>
__device__ void activate(float (&values)[kWide], const float (&at)[kWide]) {
#pragma unroll
  for (int j = 0; j < kWide; j += 2) {
#pragma unroll
    for (int k = j; k < j + 2; ++k) {
      if constexpr (!kDerivative)
        values[k] = activated<kKind, __nv_bfloat16>(values[k]);
      else if constexpr (kKind == ActivationKind::kRelu)
        values[k] = at[k] <= 0.0f ? 0.0f : values[k];
      else
        values[k] *= derivative<kKind, __nv_bfloat16>(at[k]);
    }
    const float2 both = unpacked<__nv_bfloat16>(packed_pair<__nv_bfloat16>(values[j], values[j + 1]));
    values[j] = both.x, values[j + 1] = both.y;
  }
}

template <bool kDerivative>
__device__ void activate_any(ActivationKind kind, float (&values)[kWide], const float (&at)[kWide]) {
  switch (kind) {
#define LEVIN_CASE(name)     \
  case ActivationKind::name: \
    return activate<ActivationKind::name, kDerivative>(values, at);
    LEVIN_ACTIVATIONS(LEVIN_CASE)
#undef LEVIN_CASE
    case ActivationKind::kGatedSilu:  // refused before the launch
      return;
  }
}

template <class From, bool kE5m2, bool kPerRow, Fp8Before kBefore = Fp8Before::kNothing>
__global__ void __launch_bounds__(kThreads) cast_kernel(const Fp8CastLaunch launch) {
  // Codes by column, words of 4 rows each. The place of a word is mixed with the number of its column, so that no two
  // threads of a warp meet in a bank, neither when they write nor when they read.
  __shared__ unsigned int tile[kTileColumns * kWords];
  __shared__ float column_sums[kThreads / 32][kTileColumns];
  __shared__ float sizes[kThreads / 32];
  constexpr float kLargest = Format<kE5m2>::kLargest;
  constexpr bool kDerivative = kBefore == Fp8Before::kDerivative;
  const Place place = place_of(launch.columns);
  Eight<From> raw[kTall], raw_at[kDerivative ? kTall : 1];
  load_tile<From>(launch.in, place, launch.rows, launch.columns, raw);
  if constexpr (kDerivative) load_tile<From>(launch.derivative_at, place, launch.rows, launch.columns, raw_at);

  float scale = 1.0f, column_scale[kPerRow ? kWide : 1];
  if constexpr (kPerRow) {
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      const int64_t column = place.column() + j;
      column_scale[j] = column < launch.columns ? scale_of(launch.column_amax[column], kLargest, launch.margin) : 1.0f;
      if (launch.transposed && column < launch.columns && place.first_row == 0 && place.down == 0)
        launch.column_inverse[column] = inverse_of(column_scale[j]);
    }
  } else {
    scale = scale_of(*launch.amax, kLargest, launch.margin);
    if (blockIdx.x == 0 && threadIdx.x == 0) *launch.inverse = inverse_of(scale);
  }

  float most = 0.0f, sums[kWide] = {};
  unsigned int codes[2][kTall];  // columns 0 to 3 and 4 to 7
#pragma unroll
  for (int i = 0; i < kTall; ++i) {
    const int64_t row = place.row() + i;
    const bool inside = row < launch.rows && place.column() < launch.columns;
    float v[kWide];
    unpack(raw[i], v);
    if constexpr (kBefore != Fp8Before::kNothing) {
      float at[kWide] = {};
      if constexpr (kDerivative) unpack(raw_at[i], at);
      activate_any<kDerivative>(launch.activation, v, at);
    }
#pragma unroll
    for (int j = 0; j < kWide; ++j) sums[j] += v[j];
    most = fmaxf(most, largest_of(v));

    if constexpr (kPerRow) {
      scale = row < launch.rows ? scale_of(launch.amax[row], kLargest, launch.margin) : 1.0f;
      if (launch.out && row < launch.rows && place.first_column == 0 && place.across == 0)
        launch.inverse[row] = inverse_of(scale);
    }
    codes[0][i] = codes_of<kE5m2>(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
    codes[1][i] = codes_of<kE5m2>(v[4] * scale, v[5] * scale, v[6] * scale, v[7] * scale);
    if (launch.out && inside)
      *reinterpret_cast<uint2*>(launch.out + row * launch.columns + place.column()) =
          make_uint2(codes[0][i], codes[1][i]);
    if constexpr (kPerRow) {
      const auto& s = column_scale;
      codes[0][i] = codes_of<kE5m2>(v[0] * s[0], v[1] * s[1], v[2] * s[2], v[3] * s[3]);
      codes[1][i] = codes_of<kE5m2>(v[4] * s[4], v[5] * s[5], v[6] * s[6], v[7] * s[7]);
    }
  }

  // What the threads of the block have for each other.
  if (launch.transposed) {
    unsigned int words[kWide];
    transpose_codes(codes[0], words);
    transpose_codes(codes[1], words + 4);
    // The lower half of a warp writes even columns while the upper one writes odd ones.
    const bool odd = place.down & 1;
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      const int column = place.across * kWide + (odd ? j ^ 1 : j);
      tile[column * kWords + (place.down ^ place.across)] = odd ? words[j ^ 1] : words[j];
    }
  }
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (launch.partials) {
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      const float sum = sums[j] + __shfl_xor_sync(0xffffffffu, sums[j], kAcross);
      // Neighbours of a warp are neighbours in shared memory.
      if (lane < kAcross) column_sums[warp][j * kAcross + place.across] = sum;
    }
  }
  if (launch.seen) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (lane == 0) sizes[warp] = most;
  }
  __syncthreads();

  if (launch.transposed) {
    // Four threads give one column of the tile, 16 bytes each; the columns of a warp differ in their mixing.
    const int chunk = lane % 4, parity = lane / 4 % 2, low = lane / 8;
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
      const int part = pass * (kThreads / 32) + warp;
      const int group = part / 4 * 4 + low;
      const int column = group * kWide + part % 4 * 2 + parity;
      unsigned int four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) four[i] = tile[column * kWords + ((chunk * 4 + i) ^ group)];
      const int64_t at_column = place.first_column + column, at_row = place.first_row + chunk * 16;
      if (at_column < launch.columns && at_row < launch.padded_rows)
        *reinterpret_cast<uint4*>(launch.transposed + at_column * launch.padded_rows + at_row) =
            make_uint4(four[0], four[1], four[2], four[3]);
    }
  }
  if (launch.partials && threadIdx.x < kTileColumns && place.first_column + threadIdx.x < launch.columns) {
    const int column = static_cast<int>(threadIdx.x);
    float sum = 0.0f;  // in a fixed order
#pragma unroll
    for (int i = 0; i < kThreads / 32; ++i) sum += column_sums[i][column % kWide * kAcross + column / kWide];
    launch.partials[place.first_row / kTileRows * launch.columns + place.first_column + column] = sum;
  }
  if (launch.seen && threadIdx.x == 0) {
#pragma unroll
    for (int i = 1; i < kThreads / 32; ++i) most = fmaxf(most, sizes[i]);
    raise(launch.seen, most);
  }
}

template <class From>
__global__ void __launch_bounds__(kThreads) amax_kernel(const From* in, int64_t count, float* amax) {
  float most = 0.0f;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t groups = count / kWide;
  for (; at + 3 * stride < groups; at += 4 * stride) {
    Eight<From> raw[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) raw[i] = load_8(in + (at + i * stride) * kWide);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float values[kWide];
      unpack(raw[i], values);
      most = fmaxf(most, largest_of(values));
    }
  }
  for (; at < groups; at += stride) {
    float values[kWide];
    unpack(load_8(in + at * kWide), values);
    most = fmaxf(most, largest_of(values));
  }
  raise_from_block(amax, most);
}

template <class From>
__global__ void __launch_bounds__(kThreads) row_amax_kernel(const Fp8AmaxLaunch launch) {
  __shared__ float parts[kThreads / 32][kTileColumns];
  const Place place = place_of(launch.columns);
  Eight<From> raw[kTall];
  load_tile<From>(launch.in, place, launch.rows, launch.columns, raw);
  float values[kTall][kWide];
#pragma unroll
  for (int i = 0; i < kTall; ++i) {
    unpack(raw[i], values[i]);
    float most = largest_of(values[i]);
#pragma unroll
    for (int step = kAcross / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (place.across == 0 && place.row() + i < launch.rows) raise(launch.amax + place.row() + i, most);
  }
#pragma unroll
  for (int j = 0; j < kWide; ++j) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < kTall; ++i) most = fmaxf(most, size_of(values[i][j]));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, kAcross));
    if (threadIdx.x % 32 < kAcross) parts[threadIdx.x / 32][place.across * kWide + j] = most;
  }
  __syncthreads();
  if (threadIdx.x < kTileColumns && place.first_column + threadIdx.x < launch.columns) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < kThreads / 32; ++i) most = fmaxf(most, parts[i][threadIdx.x]);
    raise(launch.column_amax + place.first_column + threadIdx.x, most);
  }
}

// A warp moves one history, from its end, so that nothing is overwritten before it was read.
__global__ void __launch_bounds__(kThreads) roll_kernel(const Fp8RollLaunch launch) {
  const int64_t slot = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (slot >= launch.slots) return;
  float* history = launch.history + slot * launch.length;
  const float now = launch.seen[slot];
  __syncwarp();
  float most = 0.0f;
  for (int64_t first = (launch.length - 1) / 32 * 32; first >= 0; first -= 32) {
    const int64_t at = first + lane;
    float value = 0.0f;
    if (at < launch.length) value = now > 0.0f ? (at == 0 ? now : history[at - 1]) : history[at];
    __syncwarp();
    if (at < launch.length) history[at] = value;
    __syncwarp();
    most = fmaxf(most, value);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  if (lane == 0) {
    launch.amax[slot] = most;
    launch.seen[slot] = 0.0f;
  }
}

unsigned int tiles_of(int64_t rows, int64_t columns) {
  return static_cast<unsigned int>((rows + kTileRows - 1) / kTileRows * ((columns + kTileColumns - 1) / kTileColumns));
}

template <class From>
void cast_from(const Fp8CastLaunch& launch, CUstream_st* stream) {
  // Rows of padding are written by the tiles of the last rows: padded_rows and a tile are multiples of 16.
  const unsigned int blocks = tiles_of(launch.rows, launch.columns);
  if constexpr (sizeof(From) == 2 && !std::is_same_v<From, __half>)
    if (launch.before != Fp8Before::kNothing) {
      if (launch.before == Fp8Before::kActivation)
        cast_kernel<From, false, false, Fp8Before::kActivation><<<blocks, kThreads, 0, stream>>>(launch);
      else
        cast_kernel<From, true, false, Fp8Before::kDerivative><<<blocks, kThreads, 0, stream>>>(launch);
      return;
    }
  if (launch.e5m2 && launch.per_row)
    cast_kernel<From, true, true><<<blocks, kThreads, 0, stream>>>(launch);
  else if (launch.e5m2)
    cast_kernel<From, true, false><<<blocks, kThreads, 0, stream>>>(launch);
  else if (launch.per_row)
    cast_kernel<From, false, true><<<blocks, kThreads, 0, stream>>>(launch);
  else
    cast_kernel<From, false, false><<<blocks, kThreads, 0, stream>>>(launch);
}

template <class From>
void amax_from(const Fp8AmaxLaunch& launch, CUstream_st* stream) {
  if (launch.per_row) {
    row_amax_kernel<From><<<tiles_of(launch.rows, launch.columns), kThreads, 0, stream>>>(launch);
    return;
  }
  constexpr int64_t kMostBlocks = 1056;  // 8 on each of 132 multiprocessors
  const int64_t count = launch.rows * launch.columns;
  int64_t blocks = (count / kWide + kThreads * 4 - 1) / (kThreads * 4);
  if (blocks > kMostBlocks) blocks = kMostBlocks;
  if (blocks < 1) blocks = 1;
  amax_kernel<From><<<static_cast<unsigned int>(blocks), kThreads, 0, stream>>>(static_cast<const From*>(launch.in),
                                                                                count, launch.amax);
}

}  // namespace

int launch_fp8_cast(const Fp8CastLaunch& launch, CUstream_st* stream) {
  const bool plain = launch.before == Fp8Before::kNothing;
  if (!plain && !is_activation(static_cast<int64_t>(launch.activation))) return static_cast<int>(cudaErrorInvalidValue);
  // Of inputs and of gradients: no other cast follows an activation.
  if (!plain &&
      (launch.type != Fp8From::kBFloat16 || launch.per_row || launch.e5m2 != (launch.before == Fp8Before::kDerivative)))
    return static_cast<int>(cudaErrorInvalidValue);
  if (launch.type == Fp8From::kFloat)
    cast_from<float>(launch, stream);
  else if (launch.type == Fp8From::kHalf)
    cast_from<__half>(launch, stream);
  else
    cast_from<__nv_bfloat16>(launch, stream);
  if (launch.partials)
    launch_finish<float>(launch.partials, (launch.rows + kTileRows - 1) / kTileRows, launch.columns,
                         {{launch.sums}, {launch.sums_type}}, stream);
  return static_cast<int>(cudaGetLastError());
}

int launch_fp8_amax(const Fp8AmaxLaunch& launch, CUstream_st* stream) {
  if (launch.type == Fp8From::kFloat)
    amax_from<float>(launch, stream);
  else if (launch.type == Fp8From::kHalf)
    amax_from<__half>(launch, stream);
  else
    amax_from<__nv_bfloat16>(launch, stream);
  return static_cast<int>(cudaGetLastError());
}

int launch_fp8_roll(const Fp8RollLaunch& launch, CUstream_st* stream) {
  const int64_t blocks = (launch.slots * 32 + kThreads - 1) / kThreads;
  roll_kernel<<<static_cast<unsigned int>(blocks), kThreads, 0, stream>>>(launch);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
