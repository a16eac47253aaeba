#include "levin/kernels/fused_step/adam_device.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kCodes = 256;  // of a map, and elements that share a scale: one thread each
static_assert(kCodes == kStepThreads && kBlockElements % kCodes == 0);

// The largest of all threads' values, for all of them.
__device__ float largest_of_block(float value, float* shared) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lane));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
#pragma unroll
  for (int warp = 1; warp < kStepThreads / 32; ++warp) value = fmaxf(value, shared[warp]);
  return value;
}

// How many middles between codes lie below the number.
__device__ int nearest_code(const float* codes, float number) {
  int code = 0;
#pragma unroll
  for (int step = kCodes / 2; step > 0; step /= 2)
    if (code + step < kCodes && number > (codes[code + step - 1] + codes[code + step]) / 2) code += step;
  return code;
}

__device__ float load_one(const void* from, NumberType type, int64_t at) {
  float out[kPack];
  load_pack(from, type, at, 1, false, out);
  return out[0];
}
__device__ void store_one(void* to, NumberType type, int64_t at, float value) {
  const float in[kPack] = {value};
  store_pack(to, type, at, 1, false, in);
}

__global__ void __launch_bounds__(kStepThreads) adam_8bit_kernel(const CodeStepTable table, const AdamNumbers numbers,
                                                                 const AdamNumbers* refreshed, const CodeBooks books) {
  if (table.found_inf != nullptr && *table.found_inf != 0) return;
  const int index = entry_of_block(table);
  const StepEntry& e = table.entries[index];
  __shared__ AdamStep<float> f;
  __shared__ float average_codes[kCodes], square_codes[kCodes], m_shared[kStepThreads / 32],
      v_shared[kStepThreads / 32];
  const int t = static_cast<int>(threadIdx.x);
  average_codes[t] = books.average[t];
  square_codes[t] = books.square[t];
  if (t == 0) {
    const AdamNumbers now = refreshed != nullptr ? *refreshed : numbers;
    f = adam_step<float>(now, *e.step, device_scale(table.scale));
  }
  __syncthreads();
  auto* first = static_cast<unsigned char*>(e.first);
  auto* second = static_cast<unsigned char*>(e.second);
  const int64_t begin = static_cast<int64_t>(blockIdx.x - table.first_block[index]) * kBlockElements;
  const int64_t end = begin + kBlockElements < e.numel ? begin + kBlockElements : e.numel;
  for (int64_t block = begin; block < end; block += kCodes) {
    const int64_t at = block + t;
    float m = 0, v = 0;
    if (at < end) {
      m = average_codes[first[at]] * e.first_scale[block / kCodes];
      v = square_codes[second[at]] * e.second_scale[block / kCodes];
      const float p = load_one(e.param, e.param_type, at) * f.shrink;
      update_moments(f, p, load_one(e.grad, e.grad_type, at), m, v);
      const float updated = ::levin::kernels::detail::updated(f, p, m, v);
      store_one(e.param, e.param_type, at, updated);
      if (e.copy != nullptr) store_one(e.copy, e.copy_type, at, updated);
    }
    const float m_scale = largest_of_block(fabsf(m), m_shared), v_scale = largest_of_block(v, v_shared);
    // The codes have room for a whole block, the parameter may end before.
    first[at] = static_cast<unsigned char>(nearest_code(average_codes, m / (m_scale > 0 ? m_scale : 1)));
    const int nearest = nearest_code(square_codes, v / (v_scale > 0 ? v_scale : 1));
    second[at] = static_cast<unsigned char>(nearest == 0 && v > 0 ? 1 : nearest);
    __syncthreads();  // everybody has read the old scales, and the shared numbers
    if (t == 0) {
      e.first_scale[block / kCodes] = m_scale;
      e.second_scale[block / kCodes] = v_scale;
    }
  }
}

}  // namespace

int launch_adam_8bit(const CodeStepTable& table, const AdamNumbers& numbers, const AdamNumbers* refreshed,
                     const CodeBooks& codes, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(table.first_block[table.count]);
  adam_8bit_kernel<<<blocks, kStepThreads, 0, stream>>>(table, numbers, refreshed, codes);
  return static_cast<int>(cudaGetLastError());
}

int load_adam_8bit() {
  return load_kernels(adam_8bit_kernel);
}

}  // namespace levin::kernels::detail
