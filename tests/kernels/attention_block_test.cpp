#include "levin/kernels/attention/attention_block.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace levin::attention_block_tests {
namespace {

using namespace levin::kernels;

struct Inputs {
  Tensor q, k, v, grad;
};

Inputs inputs(int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys) {
  torch::manual_seed(5);
  const auto made = [](int64_t h, int64_t t) { return torch::randn({2, h, t, 8}).requires_grad_(); };
  return {made(heads, queries), made(kv_heads, keys), made(kv_heads, keys), torch::randn({2, heads, queries, 8})};
}

/// Attention over all keys at once by plain operators.
Tensor whole(const Inputs& in, const AttentionBlockOptions& options) {
  const auto groups = in.q.size(1) / in.k.size(1);
  const auto k = in.k.repeat_interleave(groups, 1), v = in.v.repeat_interleave(groups, 1);
  auto scores = in.q.matmul(k.transpose(-1, -2)) * options.scale;
  if (options.softcap > 0) scores = (scores / options.softcap).tanh() * options.softcap;
  if (options.added.defined()) scores = scores + options.added;
  if (options.seen.defined())
    scores = scores.masked_fill(options.seen.logical_not(), -std::numeric_limits<float>::infinity());
  return scores.softmax(-1).matmul(v);
}

/// The same in blocks of keys, merged; and the gradients of blocks.
void expect_blocks_are_whole(const Inputs& in, const AttentionBlockOptions& options, int64_t cut) {
  const auto out = whole(in, options);
  const auto wanted = torch::autograd::grad({out}, {in.q, in.k, in.v}, {in.grad});
  const at::NoGradGuard no_grad;
  const auto keys = in.k.size(2);
  const auto part = [&](int64_t first, int64_t count) {
    auto some = options;
    if (some.seen.defined()) some.seen = some.seen.narrow(3, first, count);
    if (some.added.defined()) some.added = some.added.narrow(3, first, count);
    return some;
  };
  AttentionBlock all{torch::zeros(in.q.sizes()),
                     torch::full({2, in.q.size(1), in.q.size(2)}, -std::numeric_limits<float>::infinity()),
                     {},
                     {}};
  for (const auto& [first, count] : {std::pair{int64_t{0}, cut}, std::pair{cut, keys - cut}})
    merge_attention(
        all.out, all.sums,
        attention_block(in.q, in.k.narrow(2, first, count), in.v.narrow(2, first, count), part(first, count)));
  EXPECT_LT((all.out - out).abs().max().item<float>(), 1e-6);
  auto dq = torch::zeros_like(in.q);
  std::vector<Tensor> dk, dv;
  for (const auto& [first, count] : {std::pair{int64_t{0}, cut}, std::pair{cut, keys - cut}}) {
    const auto grads = attention_block_backward(in.grad, in.q, in.k.narrow(2, first, count),
                                                in.v.narrow(2, first, count), all, part(first, count));
    dq += grads.q;
    dk.push_back(grads.k);
    dv.push_back(grads.v);
  }
  EXPECT_LT((dq - wanted[0]).abs().max().item<float>(), 1e-5);
  EXPECT_LT((torch::cat(dk, 2) - wanted[1]).abs().max().item<float>(), 1e-5);
  EXPECT_LT((torch::cat(dv, 2) - wanted[2]).abs().max().item<float>(), 1e-5);
}

TEST(AttentionBlock, BlocksOfKeysAreTheWhole) {
  const AttentionBlockOptions plain{.scale = 0.4};
  expect_blocks_are_whole(inputs(4, 4, 6, 9), plain, 4);
  expect_blocks_are_whole(inputs(6, 2, 5, 7), plain, 1);
  expect_blocks_are_whole(inputs(4, 2, 6, 9), {.scale = 2, .softcap = 1.5}, 5);
}

TEST(AttentionBlock, MasksAndSlopesAreOfTheBlock) {
  const auto in = inputs(4, 2, 6, 6);
  AttentionBlockOptions options{.scale = 0.3};
  options.seen = torch::ones({1, 1, 6, 6}, torch::kBool).tril();
  expect_blocks_are_whole(in, options, 3);  // the first three queries see nothing of the second block
  options.added = torch::randn({2, 4, 6, 6});
  expect_blocks_are_whole(in, options, 2);
}

TEST(AttentionBlock, CausalIsATriangle) {
  const auto in = inputs(4, 2, 6, 6);
  const at::NoGradGuard no_grad;
  const auto got = attention_block(in.q, in.k, in.v, {.scale = 0.3, .causal = true});
  AttentionBlockOptions masked{.scale = 0.3};
  masked.seen = torch::ones({1, 1, 6, 6}, torch::kBool).tril();
  EXPECT_TRUE(torch::allclose(got.out, whole(in, masked), 1e-5, 1e-6));
  EXPECT_EQ(got.sums.sizes(), (std::vector<int64_t>{2, 4, 6}));
}

TEST(AttentionBlock, AQueryThatSeesNothingGetsZeros) {
  const auto in = inputs(2, 2, 3, 4);
  const at::NoGradGuard no_grad;
  AttentionBlockOptions options{.scale = 1};
  options.seen = torch::ones({1, 1, 3, 4}, torch::kBool);
  options.seen[0][0][1] = false;
  auto got = attention_block(in.q, in.k, in.v, options);
  EXPECT_EQ(got.out.select(2, 1).abs().max().item<float>(), 0);
  EXPECT_TRUE(std::isinf(got.sums[0][0][1].item<float>()));
  auto out = torch::zeros_like(got.out), sums = torch::full_like(got.sums, -std::numeric_limits<float>::infinity());
  merge_attention(out, sums, got);
  merge_attention(out, sums, got);
  EXPECT_TRUE(torch::allclose(out, got.out, 1e-5, 1e-6));  // twice the same is the same
  const auto grads = attention_block_backward(in.grad, in.q, in.k, in.v, {out, sums, {}, {}}, options);
  for (const auto& each : {grads.q, grads.k, grads.v}) EXPECT_TRUE(each.isfinite().all().item<bool>());
  EXPECT_EQ(grads.q.select(2, 1).abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace levin::attention_block_tests
