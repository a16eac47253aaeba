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

/// 16 bytes of neighbours.
template <class V>
struct alignas(16) WidePack {
  static constexpr int kCount = 16 / sizeof(V);
  V values[kCount];
};

/// The same for entries whose tensors all have one dtype V, without copies: all four loads of a thread are under way
/// at once.
template <template <class> class Step, class V>
__global__ void __launch_bounds__(kStepThreads)
    adam_uniform_kernel(const NumberTable table, const AdamNumbers numbers, const AdamNumbers* refreshed) {
  if (table.found_inf != nullptr && *table.found_inf != 0) return;
  const int index = entry_of_block(table);
  const StepEntry& e = table.entries[index];
  __shared__ Step<float> f;
  if (threadIdx.x == 0) {
    const AdamNumbers now = refreshed != nullptr ? *refreshed : numbers;
    make_step(f, now, *e.step, table.scale);
  }
  __syncthreads();
  using Pack = WidePack<V>;
  constexpr int kCount = Pack::kCount;
  const int64_t begin = static_cast<int64_t>(blockIdx.x - table.first_block[index]) * kBlockElements;
  const int64_t end = begin + kBlockElements < e.numel ? begin + kBlockElements : e.numel;
  V* const params = static_cast<V*>(e.param);
  const V* const grads = static_cast<const V*>(e.grad);
  V* const averages = static_cast<V*>(e.first);
  V* const squares = static_cast<V*>(e.second);
  const auto element = [&](V& param, V grad, V& average, V& square) {
    float p, g, m, v;
    load_as(p, param);
    load_as(g, grad);
    load_as(m, average);
    load_as(v, square);
    shrink(f, p);
    update_moments(f, p, g, m, v);
    store_as(average, m);
    store_as(square, v);
    store_as(param, updated(f, p, m, v));
  };
  for (int64_t at = begin + threadIdx.x * kCount; at < end; at += kStepThreads * kCount) {
    if (e.aligned && at + kCount <= end) {
      Pack p = *reinterpret_cast<const Pack*>(params + at);
      const Pack g = *reinterpret_cast<const Pack*>(grads + at);
      Pack m = *reinterpret_cast<const Pack*>(averages + at);
      Pack v = *reinterpret_cast<const Pack*>(squares + at);
#pragma unroll
      for (int k = 0; k < kCount; ++k) element(p.values[k], g.values[k], m.values[k], v.values[k]);
      *reinterpret_cast<Pack*>(params + at) = p;
      *reinterpret_cast<Pack*>(averages + at) = m;
      *reinterpret_cast<Pack*>(squares + at) = v;
    } else {
      for (int64_t i = at; i < at + kCount && i < end; ++i) element(params[i], grads[i], averages[i], squares[i]);
    }
  }
}

/// The dtype of all tensors of a table; none where they differ, or have copies or largest averages.
NumberType uniform_type(const NumberTable& table) {
  const auto type = table.entries[0].param_type;
  for (int i = 0; i < table.count; ++i) {
    const StepEntry& e = table.entries[i];
    if (e.param_type != type || e.grad_type != type || e.state_type != type || e.copy || e.third)
      return NumberType::kNone;
  }
  return type;
}

template <class T, template <class> class Step>
int launch(const NumberTable& table, const AdamNumbers& numbers, const AdamNumbers* refreshed, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(table.first_block[table.count]);
  switch (uniform_type(table)) {
    case NumberType::kFloat:
      adam_uniform_kernel<Step, float><<<blocks, kStepThreads, 0, stream>>>(table, numbers, refreshed);
      break;
    case NumberType::kHalf:
      adam_uniform_kernel<Step, __half><<<blocks, kStepThreads, 0, stream>>>(table, numbers, refreshed);
      break;
    case NumberType::kBFloat16:
      adam_uniform_kernel<Step, __nv_bfloat16><<<blocks, kStepThreads, 0, stream>>>(table, numbers, refreshed);
      break;
    case NumberType::kNone:
    case NumberType::kDouble:
      adam_kernel<T, Step><<<blocks, kStepThreads, 0, stream>>>(table, numbers, refreshed);
      break;
  }
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
                      adam_kernel<double, TorchAdamStep>, adam_uniform_kernel<AdamStep, float>,
                      adam_uniform_kernel<AdamStep, __half>, adam_uniform_kernel<AdamStep, __nv_bfloat16>,
                      adam_uniform_kernel<TorchAdamStep, float>, adam_uniform_kernel<TorchAdamStep, __half>,
                      adam_uniform_kernel<TorchAdamStep, __nv_bfloat16>);
}

}  // namespace levin::kernels::detail
