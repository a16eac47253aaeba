#include "levin/kernels/fused_step/adam_device.cuh"

namespace levin::kernels::detail {
namespace {

template <class T>
__global__ void __launch_bounds__(kStepThreads) adam_kernel(const NumberTable table, const AdamRates rates) {
  if (table.found_inf != nullptr && *table.found_inf != 0) return;
  const int index = entry_of_block(table);
  const StepEntry& e = table.entries[index];
  __shared__ DeviceFactors<T> f;
  if (threadIdx.x == 0) f.fill(rates, e.step, table.scale);
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
      f.averages(p[k], g[k], m[k], v[k]);
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
    for (int k = 0; k < kPack; ++k) p[k] = f.updated(p[k], m[k], v[k]);
    store_pack(e.param, e.param_type, at, count, packs, p);
    if (e.copy != nullptr) store_pack(e.copy, e.copy_type, at, count, packs, p);
  }
}

template <class T>
__global__ void __launch_bounds__(kStepThreads) sgd_kernel(const NumberTable table, const SgdRates rates) {
  if (table.found_inf != nullptr && *table.found_inf != 0) return;
  const int index = entry_of_block(table);
  const StepEntry& e = table.entries[index];
  const T lr = static_cast<T>(rates.lr), keep = static_cast<T>(rates.keep), take = static_cast<T>(rates.take);
  const T momentum = static_cast<T>(rates.momentum), decay = static_cast<T>(rates.weight_decay);
  const T scale = table.scale != nullptr ? static_cast<T>(*table.scale) : T(1);
  const T grad_factor = (rates.maximize ? T(-1) : T(1)) / scale;
  const int64_t begin = static_cast<int64_t>(blockIdx.x - table.first_block[index]) * kBlockElements;
  const int64_t end = begin + kBlockElements < e.numel ? begin + kBlockElements : e.numel;
  for (int64_t at = begin + threadIdx.x * kPack; at < end; at += kStepThreads * kPack) {
    const int count = end - at < kPack ? static_cast<int>(end - at) : kPack;
    const bool packs = e.aligned && count == kPack;
    T p[kPack], g[kPack];
    load_pack(e.param, e.param_type, at, count, packs, p);
    load_pack(e.grad, e.grad_type, at, count, packs, g);
#pragma unroll
    for (int k = 0; k < kPack; ++k) g[k] = g[k] * grad_factor + decay * p[k];
    if (e.first != nullptr) {
      T b[kPack];
      load_pack(e.first, e.state_type, at, count, packs, b);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        b[k] = keep * b[k] + take * g[k];
        g[k] = rates.nesterov ? g[k] + momentum * b[k] : b[k];
      }
      store_pack(e.first, e.state_type, at, count, packs, b);
    }
#pragma unroll
    for (int k = 0; k < kPack; ++k) p[k] -= lr * g[k];
    store_pack(e.param, e.param_type, at, count, packs, p);
    if (e.copy != nullptr) store_pack(e.copy, e.copy_type, at, count, packs, p);
  }
}

}  // namespace

int launch_adam(const NumberTable& table, const AdamRates& rates, bool in_double, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(table.first_block[table.count]);
  if (in_double)
    adam_kernel<double><<<blocks, kStepThreads, 0, stream>>>(table, rates);
  else
    adam_kernel<float><<<blocks, kStepThreads, 0, stream>>>(table, rates);
  return static_cast<int>(cudaGetLastError());
}

int launch_sgd(const NumberTable& table, const SgdRates& rates, bool in_double, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(table.first_block[table.count]);
  if (in_double)
    sgd_kernel<double><<<blocks, kStepThreads, 0, stream>>>(table, rates);
  else
    sgd_kernel<float><<<blocks, kStepThreads, 0, stream>>>(table, rates);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
