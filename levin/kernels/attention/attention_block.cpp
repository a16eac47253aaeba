#include "levin/kernels/attention/attention_block.h"

#include <limits>
#include <tuple>

#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tanh.h>

#include "levin/kernels/attention/attention_detail.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels {
namespace {

constexpr auto kUnseenScore = -std::numeric_limits<float>::infinity();

/// Scores in float32 [B, Hkv, G, Tq, Tk], G queries to a head of keys. `slope` is that of the soft cap where there is
/// one.
struct BlockScores {
  Tensor scores, slope;
};

Tensor in_wide(const Tensor& x) {
  return x.to(at::promote_types(x.scalar_type(), at::kFloat));
}

/// [B, H, T, D] to [B, Hkv, G * T, D] in float32.
Tensor grouped_rows(const Tensor& x, int64_t kv_heads) {
  return in_wide(x).reshape({x.size(0), kv_heads, -1, x.size(3)});
}

/// What broadcasts to [B, H, Tq, Tk] as it broadcasts to [B, Hkv, G, Tq, Tk].
Tensor by_group(const Tensor& x, int64_t kv_heads) {
  return x.size(1) == 1 ? x.unsqueeze(1) : x.view({x.size(0), kv_heads, -1, x.size(2), x.size(3)});
}

BlockScores scores_of(const Tensor& q, const Tensor& k, const AttentionBlockOptions& options) {
  const auto b = q.size(0), kv = k.size(1), rows = q.size(2), columns = k.size(2);
  BlockScores result;
  auto& scores = result.scores;
  scores = at::matmul(grouped_rows(q, kv), grouped_rows(k, kv).transpose(-1, -2)).mul_(options.scale);
  scores = scores.view({b, kv, -1, rows, columns});
  if (options.softcap > 0) {
    const auto turned = at::tanh(scores / options.softcap);
    result.slope = 1 - turned * turned;
    scores = turned * options.softcap;
  }
  if (options.added.defined()) scores += by_group(options.added, kv);
  if (options.seen.defined()) scores.masked_fill_(by_group(options.seen, kv).logical_not(), kUnseenScore);
  if (options.causal) {
    const auto place = at::arange(rows, q.options().dtype(at::kLong));
    scores.masked_fill_(place.unsqueeze(0) > place.unsqueeze(1), kUnseenScore);
  }
  return result;
}

/// Minus infinity as zero: what is not seen has no weight then, and no NaN.
Tensor finite_sums(const Tensor& sums) {
  return sums.masked_fill(sums == kUnseenScore, 0);
}

}  // namespace

bool is_fused_block(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionBlockOptions& options) {
  return kernel_device(q) == c10::kCUDA && at::isReducedFloatingType(q.scalar_type()) && q.size(3) % 8 == 0 &&
         q.size(3) <= 128 && options.softcap == 0 && !options.seen.defined() && !options.added.defined() &&
         (q.is_meta() || detail::flash_runs_on(q, k, v, options.causal));
}

AttentionBlock attention_block(const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionBlockOptions& options) {
  if (is_fused_block(q, k, v, options)) {
    const auto result = at::_scaled_dot_product_flash_attention(q, k, v, /*dropout_p=*/0, options.causal,
                                                                /*return_debug_mask=*/false, options.scale);
    return {std::get<0>(result), std::get<1>(result), std::get<6>(result), std::get<7>(result)};
  }
  auto scores = scores_of(q, k, options).scores;
  const auto sums = at::logsumexp(scores, {-1});  // [B, Hkv, G, Tq]
  const auto weights = scores.sub_(finite_sums(sums).unsqueeze(-1)).exp_().flatten(2, 3);
  return {at::matmul(weights, in_wide(v)).view(q.sizes()), sums.flatten(1, 2), {}, {}};
}

void merge_attention(Tensor out, Tensor sums, const AttentionBlock& block) {
  const auto both = at::logaddexp(sums, block.sums), base = finite_sums(both);
  out.mul_((sums - base).exp_().unsqueeze(-1)).add_(block.out * (block.sums - base).exp_().unsqueeze(-1));
  sums.copy_(both);
}

AttentionBlockGradients attention_block_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const AttentionBlock& all, const AttentionBlockOptions& options) {
  if (is_fused_block(q, k, v, options)) {
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
        grad, q, k, v, all.out, all.sums.contiguous(), {}, {}, q.size(2), k.size(2), /*dropout_p=*/0, options.causal,
        all.seed, all.offset, options.scale);
    return {dq, dk, dv};
  }
  const auto kv = k.size(1);
  auto [weights, slope] = scores_of(q, k, options);
  const auto sums = finite_sums(all.sums).view({q.size(0), kv, -1, q.size(2), 1});
  weights.sub_(sums).exp_();
  const auto by_out = grouped_rows(grad, kv), values = in_wide(v);
  const auto dv = at::matmul(weights.flatten(2, 3).transpose(-1, -2), by_out);
  const auto own = (in_wide(grad) * in_wide(all.out)).sum(-1).view(sums.sizes());
  auto scores = at::matmul(by_out, values.transpose(-1, -2)).view(weights.sizes()).sub_(own).mul_(weights);
  if (slope.defined()) scores.mul_(slope);
  const auto flat = scores.mul_(options.scale).flatten(2, 3);
  return {at::matmul(flat, in_wide(k)).view(q.sizes()), at::matmul(flat.transpose(-1, -2), grouped_rows(q, kv)), dv};
}

}  // namespace levin::kernels
