#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/native/transformers/cuda/sdp_utils.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include "levin/kernels/attention/attention_detail.h"
#include "levin/kernels/attention/causal_attention_detail.h"
#include "levin/kernels/attention/short_attention_detail.h"

namespace levin::kernels::detail {
namespace {

using AttentionShape = std::tuple<int, at::ScalarType, int64_t, int64_t, int64_t, int64_t, bool>;

std::mutex attention_mutex;
std::map<AttentionShape, AttentionBackend>& attention_choices() {
  static std::map<AttentionShape, AttentionBackend> choices;
  return choices;
}

/// The shortest time of forward and backward in milliseconds; infinite where the backend has no kernel for the shape
/// after all.
float attention_time(const Tensor& qkv, bool causal, AttentionBackend backend) {
  constexpr int kRuns = 3;
  const auto run = [&] {
    const auto result = fused_attention(qkv, causal, /*dropout=*/0, backend);  // no random numbers are drawn
    fused_attention_backward(result.out, qkv, result, causal, 0, backend);
  };
  float best = std::numeric_limits<float>::infinity();
  try {
    run();  // libraries load kernels, the allocator gets its memory
    for (int i = 0; i < kRuns; ++i) {
      at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
      begin.record();
      run();
      end.record();
      end.synchronize();
      best = std::min(best, begin.elapsed_time(end));
    }
  } catch (const c10::Error&) {
    return std::numeric_limits<float>::infinity();
  }
  return best;
}

}  // namespace

bool attention_runs_on(AttentionBackend backend, const Tensor& qkv, bool causal, double dropout) {
  if (backend == AttentionBackend::kShort) return short_attention_fits(qkv, causal, dropout);
  if (backend == AttentionBackend::kCausal) return causal_attention_fits(qkv, causal, dropout);
  const c10::cuda::CUDAGuard guard(qkv.device());
  const at::NoGradGuard no_grad;
  const auto parts = qkv.detach().permute({2, 0, 3, 1, 4});  // [3, B, H, T, D]
  const sdp::sdp_params params{parts[0], parts[1], parts[2], std::nullopt, dropout, causal, false};
  return backend == AttentionBackend::kCudnn ? sdp::can_use_cudnn_attention(params, false)
                                             : sdp::can_use_flash_attention(params, false);
}

bool flash_runs_on(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  const c10::cuda::CUDAGuard guard(q.device());
  const sdp::sdp_params params{q.detach(), k.detach(), v.detach(), std::nullopt, 0, causal, q.size(1) != k.size(1)};
  return sdp::can_use_flash_attention(params, false);
}

AttentionBackend fastest_attention(const Tensor& qkv, bool causal, const std::vector<AttentionBackend>& backends) {
  const AttentionShape shape{qkv.device().index(), qkv.scalar_type(), qkv.size(0), qkv.size(1),
                             qkv.size(3),          qkv.size(4),       causal};
  {
    const std::lock_guard lock(attention_mutex);
    const auto found = attention_choices().find(shape);
    if (found != attention_choices().end()) return found->second;
  }
  const c10::cuda::CUDAGuard guard(qkv.device());
  if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) return backends.front();
  // Nobody shall see these calls: autograd, observers, and checkpoints that keep results.
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::RecordFunctionGuard unseen(/*is_enabled=*/false);
  const c10::impl::ExcludeDispatchKeyGuard unkept(c10::DispatchKey::Fake);
  const auto data = qkv.detach();
  auto best = backends.front();
  auto best_time = std::numeric_limits<float>::infinity();
  for (const auto backend : backends) {
    const auto time = attention_time(data, causal, backend);
    if (time < best_time) best = backend, best_time = time;
  }
  const std::lock_guard lock(attention_mutex);
  // Another thread may have been faster; all take one choice.
  return attention_choices().try_emplace(shape, best).first->second;
}

}  // namespace levin::kernels::detail
