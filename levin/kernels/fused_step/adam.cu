#include "levin/kernels/fused_step/adam_device.cuh"

namespace levin::kernels::detail {
namespace {

template <class T>
__global__ void __launch_bounds__(kStepThreads) adam_kernel(const NumberTable table, const AdamNumbers numbers) {
  if (table.found_inf != nullptr && *table.found_inf != 0) return;
  const int index = entry_of_block(table);
  const StepEntry& e = table.entries[index];
  __shared__ AdamStep<T> f;
  if (threadIdx.x == 0) f = adam_step<T>(numbers, *e.step, device_scale(table.scale));
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
      p[k] *= f.shrink;
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

template <class T>
__global__ void __launch_bounds__(kStepThreads) sgd_kernel(const NumberTable table, const SgdNumbers numbers) {
  if (table.found_inf != nullptr && *table.found_inf != 0) return;
  const int index = entry_of_block(table);
  const StepEntry& e = table.entries[index];
  const SgdStep<T> f = sgd_step<T>(numbers, device_scale(table.scale));
  const int64_t begin = static_cast<int64_t>(blockIdx.x - table.first_block[index]) * kBlockElements;
  const int64_t end = begin + kBlockElements < e.numel ? begin + kBlockElements : e.numel;
  for (int64_t at = begin + threadIdx.x * kPack; at < end; at += kStepThreads * kPack) {
    const int count = end - at < kPack ? static_cast<int>(end - at) : kPack;
    const bool packs = e.aligned && count == kPack;
    T p[kPack], g[kPack];
    load_pack(e.param, e.param_type, at, count, packs, p);
    load_pack(e.grad, e.grad_type, at, count, packs, g);
#pragma unroll
    for (int k = 0; k < kPack; ++k) g[k] = g[k] * f.grad_factor + f.decay * p[k];
    if (e.first != nullptr) {
      T b[kPack];
      load_pack(e.first, e.state_type, at, count, packs, b);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        b[k] = f.keep * b[k] + f.take * g[k];
        g[k] = f.direct * g[k] + f.rest * b[k];
      }
      store_pack(e.first, e.state_type, at, count, packs, b);
    }
#pragma unroll
    for (int k = 0; k < kPack; ++k) p[k] -= f.lr * g[k];
    store_pack(e.param, e.param_type, at, count, packs, p);
    if (e.copy != nullptr) store_pack(e.copy, e.copy_type, at, count, packs, p);
  }
}

}  // namespace

int launch_adam(const NumberTable& table, const AdamNumbers& numbers, bool in_double, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(table.first_block[table.count]);
  if (in_double)
    adam_kernel<double><<<blocks, kStepThreads, 0, stream>>>(table, numbers);
  else
    adam_kernel<float><<<blocks, kStepThreads, 0, stream>>>(table, numbers);
  return static_cast<int>(cudaGetLastError());
}

int launch_sgd(const NumberTable& table, const SgdNumbers& numbers, bool in_double, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(table.first_block[table.count]);
  if (in_double)
    sgd_kernel<double><<<blocks, kStepThreads, 0, stream>>>(table, numbers);
  else
    sgd_kernel<float><<<blocks, kStepThreads, 0, stream>>>(table, numbers);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
