#include "levin/kernels/attention/attention.h"

#include <cmath>
#include <cstdlib>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/kernels/attention/attention_detail.h"
#include "levin/kernels/attention/causal_attention_detail.h"
#include "levin/kernels/attention/rotary.h"
#include "levin/kernels/attention/rotary_detail.h"
#include "levin/kernels/attention/short_attention_detail.h"
#include "levin/kernels/linear/known_sums.h"
#include "levin/kernels/linear/product_dtype.h"
#include "levin/kernels/number_type.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels {
namespace {

using detail::AttentionBackend;
using detail::AttentionResult;
using detail::AttentionWish;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Part 0, 1 or 2 of [B, T, 3, H, D] as [B, H, T, D].
Tensor heads_of(const Tensor& qkv, int64_t part) {
  return qkv.select(2, part).transpose(1, 2);
}

/// [B, H, T, D] to [B, T, H * D]; a view where T comes before H in memory.
Tensor heads_joined(const Tensor& mixed) {
  return mixed.transpose(1, 2).reshape({mixed.size(0), mixed.size(2), mixed.size(1) * mixed.size(3)});
}

/// As models wrote it before there was a kernel: the CPU's numbers depend on it.
Tensor attention_by_torch(const Tensor& qkv, const AttentionOptions& options) {
  auto parts = qkv.unbind(2);  // [B, T, H, D] each
  if (options.rotary.defined()) {
    parts[0] = rotate(parts[0], options.rotary);
    parts[1] = rotate(parts[1], options.rotary);
  }
  return heads_joined(at::scaled_dot_product_attention(parts[0].transpose(1, 2), parts[1].transpose(1, 2),
                                                       parts[2].transpose(1, 2), {}, options.dropout, options.causal));
}

struct FusedAttention : torch::autograd::Function<FusedAttention> {
  /// `turned`: qkv is no layer's result, but what rotary positions have made of it.
  static Tensor forward(AutogradContext* context, const Tensor& qkv, bool causal, double dropout, int64_t backend,
                        bool turned) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto result = detail::fused_attention(qkv, causal, dropout, static_cast<AttentionBackend>(backend));
    auto out = heads_joined(result.out);
    context->save_for_backward({qkv, out, result.sums, result.seed, result.offset});
    context->saved_data["causal"] = causal;
    context->saved_data["dropout"] = dropout;
    context->saved_data["backend"] = backend;
    // Parameters are wide where autocast narrows what they are multiplied with.
    const auto bias = detail::autocast_dtype(qkv) ? at::kFloat : qkv.scalar_type();
    context->saved_data["bias"] = static_cast<int64_t>(turned ? at::ScalarType::Undefined : bias);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto& qkv = saved[0];
    const bool causal = context->saved_data["causal"].toBool();
    const double dropout = context->saved_data["dropout"].toDouble();
    if (at::GradMode::is_enabled()) return {twice_differentiable(grads[0], qkv, causal, dropout), {}, {}, {}, {}};
    const at::AutoDispatchBelowADInplaceOrView below;
    const std::vector<int64_t> heads{qkv.size(0), qkv.size(1), qkv.size(3), qkv.size(4)};
    const auto grad = grads[0].contiguous().view(heads).transpose(1, 2);
    const AttentionResult result{saved[1].view(heads).transpose(1, 2), saved[2], saved[3], saved[4]};
    const auto backend = static_cast<AttentionBackend>(context->saved_data["backend"].toInt());
    const auto bias = static_cast<at::ScalarType>(context->saved_data["bias"].toInt());
    const auto columns = bias == at::ScalarType::Undefined ? std::nullopt : std::optional(bias);
    return {detail::fused_attention_backward(grad, qkv, result, causal, dropout, backend, columns), {}, {}, {}, {}};
  }

 private:
  /// The backends have no second derivative; plain operators have.
  static Tensor twice_differentiable(const Tensor& grad, const Tensor& qkv, bool causal, double dropout) {
    LEVIN_CHECK(dropout == 0, "[attention] create_graph with a dropout of ", dropout,
                " is not supported: what was dropped is known to the fused kernel alone; set dropout to 0");
    const auto mixed = std::get<0>(
        at::_scaled_dot_product_attention_math(heads_of(qkv, 0), heads_of(qkv, 1), heads_of(qkv, 2), {}, 0.0, causal));
    return torch::autograd::grad({heads_joined(mixed)}, {qkv}, {grad}, std::nullopt, /*create_graph=*/true)[0];
  }
};

AttentionWish attention_wish_of_environment() {
  const char* word = std::getenv("LEVIN_ATTENTION");
  return detail::attention_wish(word ? word : "auto");
}

}  // namespace

namespace detail {

AttentionWish attention_wish(std::string_view word) {
  static const std::vector<std::string> known{"auto", "cudnn", "flash", "short", "causal"};  // as AttentionWish
  for (size_t i = 0; i < known.size(); ++i)
    if (word == known[i]) return static_cast<AttentionWish>(i);
  fail_unknown("attention", "LEVIN_ATTENTION", word, known);
}

AttentionBackend attention_backend(const Tensor& qkv, const AttentionOptions& options, AttentionWish wish) {
  const auto length = qkv.size(1), size = qkv.size(4);
  if (!at::isReducedFloatingType(qkv.scalar_type()) || size % 8 != 0 || size > 128 || length < 2 || qkv.numel() == 0)
    return AttentionBackend::kTorch;
  if ((wish == AttentionWish::kAuto || wish == AttentionWish::kShort) &&
      short_attention_fits(qkv, options.causal, options.dropout))
    return AttentionBackend::kShort;  // nothing was faster at any size of a batch
  // No device can be asked for meta tensors.
  const auto runs = [&](AttentionBackend backend) {
    return qkv.is_meta() || attention_runs_on(backend, qkv, options.causal, options.dropout);
  };
  // cuDNN rounds other fractions.
  const bool sixteenths = options.dropout * 16 == std::floor(options.dropout * 16);
  const bool cudnn = wish != AttentionWish::kFlash && sixteenths && runs(AttentionBackend::kCudnn);
  if (cudnn && wish == AttentionWish::kCudnn) return AttentionBackend::kCudnn;
  std::vector<AttentionBackend> all;  // the likeliest one first
  if (wish != AttentionWish::kFlash && wish != AttentionWish::kShort &&
      causal_attention_fits(qkv, options.causal, options.dropout))
    all.push_back(AttentionBackend::kCausal);
  if (!all.empty() && wish == AttentionWish::kCausal) return AttentionBackend::kCausal;
  if (cudnn) all.push_back(AttentionBackend::kCudnn);
  if (runs(AttentionBackend::kFlash)) all.push_back(AttentionBackend::kFlash);
  if (all.empty()) return AttentionBackend::kTorch;
  return all.size() == 1 || qkv.is_meta() ? all.front() : fastest_attention(qkv, options.causal, all);
}

AttentionResult fused_attention(const Tensor& qkv, bool causal, double dropout, AttentionBackend backend) {
  if (backend == AttentionBackend::kShort || backend == AttentionBackend::kCausal) {
    const auto [out, sums] = backend == AttentionBackend::kShort ? short_attention(qkv) : causal_attention(qkv);
    return {out.transpose(1, 2), sums, {}, {}};
  }
  const auto q = heads_of(qkv, 0), k = heads_of(qkv, 1), v = heads_of(qkv, 2);
  if (backend == AttentionBackend::kCudnn) {
    // The sums are always asked for: a forward that is kept for a checkpoint does not know that backward will need
    // them.
    const auto result = at::_scaled_dot_product_cudnn_attention(q, k, v, {}, /*compute_log_sumexp=*/true, dropout,
                                                                causal, /*return_debug_mask=*/false);
    return {std::get<0>(result), std::get<1>(result), std::get<6>(result), std::get<7>(result)};
  }
  const auto result =
      at::_scaled_dot_product_flash_attention(q, k, v, dropout, causal, /*return_debug_mask=*/false, std::nullopt);
  return {std::get<0>(result), std::get<1>(result), std::get<6>(result), std::get<7>(result)};
}

Tensor fused_attention_backward(const Tensor& grad, const Tensor& qkv, const AttentionResult& result, bool causal,
                                double dropout, AttentionBackend backend, std::optional<at::ScalarType> bias) {
  if (backend == AttentionBackend::kShort || backend == AttentionBackend::kCausal) {
    const auto backward = backend == AttentionBackend::kShort ? short_attention_backward : causal_attention_backward;
    const auto [qkv_grad, columns] = backward(grad.transpose(1, 2), qkv, result.out.transpose(1, 2), result.sums,
                                              adds_columns_up(qkv) ? bias : std::nullopt);
    if (columns.defined()) remember_column_sums(qkv_grad, columns);
    return qkv_grad;
  }
  const auto q = heads_of(qkv, 0), k = heads_of(qkv, 1), v = heads_of(qkv, 2);
  const auto length = qkv.size(1);
  const auto [dq, dk, dv] =
      backend == AttentionBackend::kCudnn
          ? at::_scaled_dot_product_cudnn_attention_backward(grad, q, k, v, result.out, result.sums, result.seed,
                                                             result.offset, {}, {}, {}, length, length, dropout, causal)
          : at::_scaled_dot_product_flash_attention_backward(grad, q, k, v, result.out, result.sums, {}, {}, length,
                                                             length, dropout, causal, result.seed, result.offset);
  return packed_gradient(dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2), bias);
}

Tensor packed_gradient(const Tensor& dq, const Tensor& dk, const Tensor& dv, std::optional<at::ScalarType> bias) {
  if (!bias || !adds_columns_up(dq)) return pack_qkv(dq, dk, dv);
  const auto [grad, columns] = pack_qkv_and_sums(dq, dk, dv, *bias);
  remember_column_sums(grad, columns);
  return grad;
}

Tensor attention_with(const Tensor& qkv, const AttentionOptions& options, AttentionBackend backend) {
  // cuDNN reads packs of 16 bytes, and does not ask where they are.
  const auto placed = qkv.is_meta() || is_pack_aligned(qkv.const_data_ptr()) ? qkv : qkv.clone();
  const auto turned = options.rotary.defined() ? rotary_qk(placed, options.rotary) : placed;
  if (backend == AttentionBackend::kTorch)
    return attention_by_torch(turned, {.causal = options.causal, .dropout = options.dropout});
  return FusedAttention::apply(turned, options.causal, options.dropout, static_cast<int64_t>(backend),
                               options.rotary.defined());
}

}  // namespace detail

Tensor attention(const Tensor& given, const AttentionOptions& options) {
  LEVIN_CHECK(given.dim() == 5 && given.size(2) == 3, "[attention] needs qkv [B, T, 3, H, D], got ", given.sizes());
  LEVIN_CHECK(options.dropout >= 0 && options.dropout <= 1, "[attention] dropout ", options.dropout,
              " is not in 0 to 1");
  if (kernel_device(given) != c10::kCUDA) return attention_by_torch(given, options);
  if (given.numel() == 0) return given.select(2, 2).flatten(2);  // torch gives no tensor at all
  // As autocast has it for attention.
  const auto qkv = given.scalar_type() == at::kDouble ? given : given.to(product_dtype(given));
  static const auto wish = attention_wish_of_environment();
  return detail::attention_with(qkv, options, detail::attention_backend(qkv, options, wish));
}

}  // namespace levin::kernels
