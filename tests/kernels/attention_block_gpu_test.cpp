// Blocks of flash attention against attention over all keys at once.
#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/attention/attention_block.h"
#include "levin/testing/gpu.h"

namespace levin::attention_block_gpu_tests {
namespace {

using namespace levin::kernels;

class AttentionBlockGpu : public testing::GpuTest {};

struct Inputs {
  Tensor q, k, v, grad;
};

/// As models have them: [B, T, H, D] in memory.
Inputs inputs(int64_t kv_heads, int64_t length, at::ScalarType dtype) {
  torch::manual_seed(5);
  const auto made = [&](int64_t h) {
    return torch::randn({2, length, h, 64}, torch::device(torch::kCUDA).dtype(dtype)).transpose(1, 2);
  };
  return {made(8), made(kv_heads), made(kv_heads), made(8)};
}

/// Over all keys, in float32: {out, dq, dk, dv}.
std::vector<Tensor> whole(const Inputs& in, const AttentionBlockOptions& options) {
  std::vector<Tensor> given;
  for (const auto& each : {in.q, in.k, in.v}) given.push_back(each.to(torch::kFloat).detach().requires_grad_());
  const auto groups = in.q.size(1) / in.k.size(1);
  auto scores = given[0].matmul(given[1].repeat_interleave(groups, 1).transpose(-1, -2)) * options.scale;
  if (options.causal) {
    const auto hidden = torch::ones({in.q.size(2), in.k.size(2)}, in.q.options().dtype(torch::kBool)).triu(1);
    scores = scores.masked_fill(hidden, -std::numeric_limits<float>::infinity());
  }
  const auto out = scores.softmax(-1).matmul(given[2].repeat_interleave(groups, 1));
  auto result = torch::autograd::grad({out}, given, {in.grad.to(torch::kFloat)});
  result.insert(result.begin(), out.detach());
  return result;
}

/// Attention of one rank in a ring of `parts`, as blocks: the second part of the queries sees all keys before it, and
/// itself causally.
std::vector<Tensor> in_blocks(const Inputs& in, const AttentionBlockOptions& options, int64_t parts) {
  const at::NoGradGuard no_grad;
  const auto length = in.q.size(2), each = length / parts;
  const auto wide = in.q.options().dtype(torch::kFloat);
  AttentionBlock all{torch::zeros(in.q.sizes(), wide),
                     torch::full({2, 8, length}, -std::numeric_limits<float>::infinity(), wide),
                     {},
                     {}};
  const auto some = [&](const Tensor& x, int64_t i) { return x.narrow(2, i * each, each); };
  const auto each_pair = [&](auto&& f) {
    for (int64_t i = 0; i < parts; ++i)
      for (int64_t j = 0; j < (options.causal ? i + 1 : parts); ++j) {
        auto block = options;
        block.causal = options.causal && i == j;
        f(i, j, block);
      }
  };
  each_pair([&](int64_t i, int64_t j, const AttentionBlockOptions& block) {
    EXPECT_TRUE(is_fused_block(some(in.q, i), some(in.k, j), some(in.v, j), block));
    const auto got = attention_block(some(in.q, i), some(in.k, j), some(in.v, j), block);
    merge_attention(some(all.out, i), some(all.sums, i), got);
    all.seed = got.seed, all.offset = got.offset;
  });
  all.out = all.out.to(in.q.scalar_type());
  std::vector<Tensor> sums{all.out, torch::zeros(in.q.sizes(), wide), torch::zeros(in.k.sizes(), wide),
                           torch::zeros(in.v.sizes(), wide)};
  each_pair([&](int64_t i, int64_t j, const AttentionBlockOptions& block) {
    const auto grads = attention_block_backward(some(in.grad, i), some(in.q, i), some(in.k, j), some(in.v, j),
                                                {some(all.out, i), some(all.sums, i), all.seed, all.offset}, block);
    some(sums[1], i).add_(grads.q);
    some(sums[2], j).add_(grads.k);
    some(sums[3], j).add_(grads.v);
  });
  return sums;
}

TEST_F(AttentionBlockGpu, MergedBlocksOfFlashAttentionAreTheWhole) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf})
    for (const int64_t kv_heads : {8, 2})
      for (const bool causal : {false, true}) {
        const auto in = inputs(kv_heads, 192, dtype);
        const AttentionBlockOptions options{.scale = 0.125, .causal = causal};
        const auto wanted = whole(in, options);
        const auto got = in_blocks(in, options, 3);
        for (size_t i = 0; i < wanted.size(); ++i) {
          const auto scale = std::max(1.0, wanted[i].abs().max().item<double>());
          EXPECT_LT((got[i].to(torch::kFloat) - wanted[i]).abs().max().item<double>() / scale, 0.02)
              << i << " kv_heads " << kv_heads << " causal " << causal << " " << dtype;
        }
      }
}

}  // namespace
}  // namespace levin::attention_block_gpu_tests
