#include "levin/kernels/fused_step/adam_device.cuh"

namespace levin::kernels::detail {
namespace {

template <class T, bool kAsTorch>
__global__ void __launch_bounds__(kStepThreads)
    sgd_kernel(const NumberTable table, const SgdNumbers numbers, const SgdNumbers* refreshed) {
  if (table.found_inf != nullptr && *table.found_inf != 0) return;
  const int index = entry_of_block(table);
  const StepEntry& e = table.entries[index];
  const SgdNumbers now = refreshed != nullptr ? *refreshed : numbers;
  const SgdStep<T> f = sgd_step<T>(now, device_scale(table.scale));
  const int64_t begin = static_cast<int64_t>(blockIdx.x - table.first_block[index]) * kBlockElements;
  const int64_t end = begin + kBlockElements < e.numel ? begin + kBlockElements : e.numel;
  for (int64_t at = begin + threadIdx.x * kPack; at < end; at += kStepThreads * kPack) {
    const int count = end - at < kPack ? static_cast<int>(end - at) : kPack;
    const bool packs = e.aligned && count == kPack;
    T p[kPack], g[kPack];
    load_pack(e.param, e.param_type, at, count, packs, p);
    load_pack(e.grad, e.grad_type, at, count, packs, g);
    T b[kPack];
    if (e.first != nullptr) load_pack(e.first, e.state_type, at, count, packs, b);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      if constexpr (kAsTorch) {
        torch_sgd(now, table.scale, p[k], g[k], e.first != nullptr ? &b[k] : nullptr);
      } else {
        g[k] = g[k] * f.grad_factor + f.decay * p[k];
        if (e.first != nullptr) {
          b[k] = f.keep * b[k] + f.take * g[k];
          g[k] = f.direct * g[k] + f.rest * b[k];
        }
        p[k] -= f.lr * g[k];
      }
    }
    if (e.first != nullptr) store_pack(e.first, e.state_type, at, count, packs, b);
    store_pack(e.param, e.param_type, at, count, packs, p);
    if (e.copy != nullptr) store_pack(e.copy, e.copy_type, at, count, packs, p);
  }
}

template <class T, bool kAsTorch>
int launch(const NumberTable& table, const SgdNumbers& numbers, const SgdNumbers* refreshed, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(table.first_block[table.count]);
  sgd_kernel<T, kAsTorch><<<blocks, kStepThreads, 0, stream>>>(table, numbers, refreshed);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

int launch_sgd(const NumberTable& table, const SgdNumbers& numbers, const SgdNumbers* refreshed, StepKernel kernel,
               CUstream_st* stream) {
  if (kernel.as_torch)
    return kernel.in_double ? launch<double, true>(table, numbers, refreshed, stream)
                            : launch<float, true>(table, numbers, refreshed, stream);
  return kernel.in_double ? launch<double, false>(table, numbers, refreshed, stream)
                          : launch<float, false>(table, numbers, refreshed, stream);
}

int load_sgd() {
  return load_kernels(sgd_kernel<float, false>, sgd_kernel<double, false>, sgd_kernel<float, true>,
                      sgd_kernel<double, true>);
}

}  // namespace levin::kernels::detail
