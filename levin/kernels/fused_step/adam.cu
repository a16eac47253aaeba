#include "levin/kernels/fused_step/adam_device.cuh"

namespace levin::kernels::detail {
namespace {

template <class T>
__device__ void shrink(const AdamStep<T>& f, T& param) {
  param *= f.shrink;
}
template <class T>
__device__ void shrink(const TorchAdamStep<T>&, T&) {}

template <class T>
__device__ void make_step(AdamStep<T>& f, const AdamNumbers& numbers, float steps, const float* scale) {
  f = adam_step<T>(numbers, steps, device_scale(scale));
}
template <class T>
__device__ void make_step(TorchAdamStep<T>& f, const AdamNumbers& numbers, float steps, const float* scale) {
  f = torch_adam_step<T>(numbers, steps, scale);
}

template <class T, template <class> class Step>
__global__ void __launch_bounds__(kStepThreads)
    adam_kernel(const NumberTable table, const AdamNumbers numbers, const AdamNumbers* refreshed) {
  if (table.found_inf != nullptr && *table.found_inf != 0) return;
  const int index = entry_of_block(table);
  const StepEntry& e = table.entries[index];
  __shared__ Step<T> f;
  if (threadIdx.x == 0) {
    const AdamNumbers now = refreshed != nullptr ? *refreshed : numbers;
    make_step(f, now, *e.step, table.scale);
  }
  __syncthreads();
  const int64_t begin = static_cast<int64_t>(blockIdx.x - table.first_block[index]) * kBlockElements;
  const int64_t end = begin + kBlockElements < e.numel ? begin + kBlockElements : e.numel;
  for (int64_t at = begin + threadIdx.x * kPack; at < end; at += kStepThreads * kPack) {
    const int count = end - at < kPack ? static_cast<int>(end - at) : kPack;
    const bool packs = e.aligned && count == kPack;
    T p[kPack], g[kPack], m[kPack], v[kPack];
    load_pack(e.param, e.param_type, at, count, packs, p);
    load_pack(e.grad, e.grad_type, at, count, packs, g);
    load_pack(e.first, e.state_type, at, count, packs, m);
    load_pack(e.second, e.state_type, at, count, packs, v);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      shrink(f, p[k]);
      update_moments(f, p[k], g[k], m[k], v[k]);
    }
    store_pack(e.first, e.state_type, at, count, packs, m);
    store_pack(e.second, e.state_type, at, count, packs, v);
    if (e.third != nullptr) {
      T x[kPack];
      load_pack(e.third, e.state_type, at, count, packs, x);
#pragma unroll
      for (int k = 0; k < kPack; ++k) v[k] = x[k] < v[k] ? v[k] : x[k];
      store_pack(e.third, e.state_type, at, count, packs, v);
    }
#pragma unroll
    for (int k = 0; k < kPack; ++k) p[k] = updated(f, p[k], m[k], v[k]);
    store_pack(e.param, e.param_type, at, count, packs, p);
    if (e.copy != nullptr) store_pack(e.copy, e.copy_type, at, count, packs, p);
  }
}

template <class T, template <class> class Step>
int launch(const NumberTable& table, const AdamNumbers& numbers, const AdamNumbers* refreshed, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(table.first_block[table.count]);
  adam_kernel<T, Step><<<blocks, kStepThreads, 0, stream>>>(table, numbers, refreshed);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

int launch_adam(const NumberTable& table, const AdamNumbers& numbers, const AdamNumbers* refreshed, StepKernel kernel,
                CUstream_st* stream) {
  if (kernel.as_torch)
    return kernel.in_double ? launch<double, TorchAdamStep>(table, numbers, refreshed, stream)
                            : launch<float, TorchAdamStep>(table, numbers, refreshed, stream);
  return kernel.in_double ? launch<double, AdamStep>(table, numbers, refreshed, stream)
                          : launch<float, AdamStep>(table, numbers, refreshed, stream);
}

int load_adam() {
  return load_kernels(adam_kernel<float, AdamStep>, adam_kernel<double, AdamStep>, adam_kernel<float, TorchAdamStep>,
                      adam_kernel<double, TorchAdamStep>);
}

}  // namespace levin::kernels::detail
