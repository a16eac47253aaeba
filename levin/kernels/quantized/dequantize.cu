// A packed matrix as plain numbers. A thread writes 16 bytes; the writes are most of the traffic.
#include <cuda_runtime.h>

#include "levin/kernels/numbers.cuh"
#include "levin/kernels/quantized/packed_decode.cuh"
#include "levin/kernels/quantized/quantized_launch.h"

namespace levin::kernels::detail {
namespace {

constexpr int kThreads = 256, kNumbers = 8;

__device__ __forceinline__ void write_eight(const float (&numbers)[kNumbers], float* to) {
  reinterpret_cast<float4*>(to)[0] = make_float4(numbers[0], numbers[1], numbers[2], numbers[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(numbers[4], numbers[5], numbers[6], numbers[7]);
}
template <class T>
__device__ __forceinline__ void write_eight(const float (&numbers)[kNumbers], T* to) {
  *reinterpret_cast<uint4*>(to) =
      make_uint4(Pairs<T>::pack(numbers[0], numbers[1]), Pairs<T>::pack(numbers[2], numbers[3]),
                 Pairs<T>::pack(numbers[4], numbers[5]), Pairs<T>::pack(numbers[6], numbers[7]));
}

/// Products are rounded one by one, as the CPU and bitsandbytes round them.
template <WeightFormat format>
__device__ __forceinline__ void decode_eight(const PackedMatrix& matrix, int64_t at, int64_t row, const float* table,
                                             float (&numbers)[kNumbers]) {
  if constexpr (format == WeightFormat::kNf4) {
    const auto word = __ldg(static_cast<const uint32_t*>(matrix.codes) + at / kNumbers);
    const auto scale = nf4_scale(matrix, at / matrix.group);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i)
      numbers[i] = __fmul_rn(table[word >> (8 * (i / 2) + (i % 2 ? 0 : 4)) & 15], scale);
  } else if constexpr (format == WeightFormat::kInt4) {
    const auto word = __ldg(static_cast<const uint32_t*>(matrix.codes) + at / kNumbers);
    const float2 pair = __half22float2(__ldg(static_cast<const __half2*>(matrix.scales) + at / matrix.group));
#pragma unroll
    for (int i = 0; i < kNumbers; ++i)
      numbers[i] = __fmul_rn(static_cast<float>(word >> (4 * (i / 2) + 16 * (i % 2)) & 15) - pair.y, pair.x);
  } else {
    const uint2 words = __ldg(static_cast<const uint2*>(matrix.codes) + at / kNumbers);
    const auto scale = __ldg(static_cast<const float*>(matrix.scales) + row);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      const auto byte = (i < 4 ? words.x : words.y) >> (8 * (i % 4)) & 0xff;
      if constexpr (format == WeightFormat::kInt8) {
        numbers[i] = __fmul_rn(__fmul_rn(static_cast<float>(static_cast<int8_t>(byte)), scale), kInt8Unit);
      } else {
        const __half_raw half = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(byte), __NV_E4M3);
        numbers[i] = __fmul_rn(__half2float(half), scale);
      }
    }
  }
}

template <WeightFormat format, class T>
__global__ void __launch_bounds__(kThreads) dequantize(PackedMatrix matrix, T* to) {
  __shared__ float table[16];
  if (format == WeightFormat::kNf4) {
    if (threadIdx.x < 16) table[threadIdx.x] = kNf4OnDevice[threadIdx.x];
    __syncthreads();
  }
  const int64_t total = matrix.rows * matrix.columns, step = static_cast<int64_t>(gridDim.x) * kThreads * kNumbers;
  for (auto at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kNumbers; at < total; at += step) {
    float numbers[kNumbers];
    decode_eight<format>(matrix, at, at / matrix.columns, table, numbers);
    write_eight(numbers, to + at);
  }
}

template <class T>
int launch_to(const PackedMatrix& matrix, T* to, CUstream_st* stream) {
  const auto wanted = (matrix.rows * matrix.columns / kNumbers + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < 132 * 32 ? wanted : 132 * 32);
  switch (matrix.format) {
    case WeightFormat::kInt8:
      dequantize<WeightFormat::kInt8><<<blocks, kThreads, 0, stream>>>(matrix, to);
      break;
    case WeightFormat::kFp8:
      dequantize<WeightFormat::kFp8><<<blocks, kThreads, 0, stream>>>(matrix, to);
      break;
    case WeightFormat::kInt4:
      dequantize<WeightFormat::kInt4><<<blocks, kThreads, 0, stream>>>(matrix, to);
      break;
    case WeightFormat::kNf4:
      dequantize<WeightFormat::kNf4><<<blocks, kThreads, 0, stream>>>(matrix, to);
      break;
    case WeightFormat::kPlain:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace

int launch_dequantize(const PackedMatrix& matrix, void* to, NumberType type, CUstream_st* stream) {
  if (matrix.rows == 0 || matrix.columns == 0) return cudaSuccess;
  switch (type) {
    case NumberType::kFloat:
      return launch_to(matrix, static_cast<float*>(to), stream);
    case NumberType::kHalf:
      return launch_to(matrix, static_cast<__half*>(to), stream);
    case NumberType::kBFloat16:
      return launch_to(matrix, static_cast<__nv_bfloat16*>(to), stream);
    case NumberType::kNone:
    case NumberType::kDouble:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace levin::kernels::detail
