#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/kernels/attention/attention.h"

namespace levin::kernels::detail {

/// kTorch: what at::scaled_dot_product_attention chooses. kShort: short_attention_detail.h. kCausal:
/// causal_attention_detail.h.
enum class AttentionBackend { kTorch, kCudnn, kFlash, kShort, kCausal };

/// "cudnn", "flash", "short", "causal" or "auto", as LEVIN_ATTENTION may say.
enum class AttentionWish { kAuto, kCudnn, kFlash, kShort, kCausal };
AttentionWish attention_wish(std::string_view word);

/// qkv [B, T, 3, H, D] of CUDA or of meta tensors that stand for it, in the dtype that attention computes in.
AttentionBackend attention_backend(const Tensor& qkv, const AttentionOptions& options, AttentionWish wish);

/// Attention by one of the backends, whichever would be chosen.
Tensor attention_with(const Tensor& qkv, const AttentionOptions& options, AttentionBackend backend);

/// What one call of a backend gives; [B, H, T, D].
struct AttentionResult {
  Tensor out, sums, seed, offset;
};
AttentionResult fused_attention(const Tensor& qkv, bool causal, double dropout, AttentionBackend backend);
/// The gradient of qkv, packed like it. `bias`: the dtype of the bias that qkv comes from, where there may be one.
Tensor fused_attention_backward(const Tensor& grad, const Tensor& qkv, const AttentionResult& result, bool causal,
                                double dropout, AttentionBackend backend,
                                std::optional<at::ScalarType> bias = std::nullopt);
/// Gradients of queries, keys and values [B, T, H, D] as that of qkv. The sums of its columns are remembered for such a
/// bias, where kernels add them up (known_sums.h).
Tensor packed_gradient(const Tensor& dq, const Tensor& dk, const Tensor& dv, std::optional<at::ScalarType> bias);

// ---- in attention_cuda.cpp

/// Whether the backend takes tensors of CUDA like these.
bool attention_runs_on(AttentionBackend backend, const Tensor& qkv, bool causal, double dropout);

/// Whether flash attention takes queries [B, H, T, D] and keys and values [B, Hkv, S, D] like these.
bool flash_runs_on(const Tensor& q, const Tensor& k, const Tensor& v, bool causal);

/// The fastest of the backends for the shape: measured once, remembered for the process. While a CUDA graph is captured
/// nothing can be measured; a shape that is new then gets the first one, and is measured the next time.
AttentionBackend fastest_attention(const Tensor& qkv, bool causal, const std::vector<AttentionBackend>& backends);

}  // namespace levin::kernels::detail
