#include "levin/testing/block_sparse.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/block_sparse/attention.h"
#include "levin/kernels/block_sparse/attention_detail.h"
#include "levin/kernels/played_device.h"
#include "levin/testing/error_of.h"
#include "levin/testing/scoped_variable.h"

namespace levin::block_sparse_tests {
namespace {

using at::Tensor;
using kernels::block_sparse_attention;
using testing::error_of;
using ::testing::HasSubstr;
using testing::random_plan;
using testing::seen_densely;

TEST(BlockSparse, EqualsAttentionWithAMask) {
  torch::manual_seed(1);
  const auto plan = random_plan(/*heads=*/2, /*blocks=*/8, /*size=*/3, /*random=*/2);
  for (const bool padded : {false, true}) {
    const auto qkv = torch::randn({2, 24, 3, 2, 5}, at::kDouble).requires_grad_();
    Tensor mask;
    if (padded) {
      mask = at::ones({2, 24}, at::kLong);
      mask[0].slice(0, 17).zero_();
      mask[1].slice(0, 0, 4).zero_();
    }
    const auto found = block_sparse_attention(qkv, mask, plan), expected = seen_densely(qkv, mask, plan);
    EXPECT_TRUE(at::allclose(found, expected, 1e-10, 1e-12));
    const auto grad = torch::randn_like(found);
    const auto of = torch::autograd::grad({found}, {qkv}, {grad}, /*retain_graph=*/true)[0];
    EXPECT_TRUE(at::allclose(of, torch::autograd::grad({expected}, {qkv}, {grad}, true)[0], 1e-10, 1e-12));
    // A second derivative, by plain operators.
    const auto twice = [&](const Tensor& result) {
      const auto first = torch::autograd::grad({result}, {qkv}, {grad}, true, /*create_graph=*/true)[0];
      return torch::autograd::grad({first.square().sum()}, {qkv})[0];
    };
    EXPECT_TRUE(at::allclose(twice(found), twice(expected), 1e-8, 1e-10));
  }
}

TEST(BlockSparse, SamplesAreComputedInChunks) {
  torch::manual_seed(2);
  const auto plan = random_plan(2, 8, 3, 2);
  const auto qkv = torch::randn({5, 24, 3, 2, 5}), grad = torch::randn({5, 24, 10});
  const auto mask = at::rand({5, 24}) > 0.2;
  const auto out = kernels::detail::block_sparse_by_aten(qkv, mask, plan.seen);
  const auto of = kernels::detail::block_sparse_backward_by_aten(grad, qkv, mask, plan.seen);
  for (const int64_t gathered : {1, 2500}) {  // one sample at a time, and two
    EXPECT_TRUE(at::allclose(kernels::detail::block_sparse_by_aten(qkv, mask, plan.seen, gathered), out, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(kernels::detail::block_sparse_backward_by_aten(grad, qkv, mask, plan.seen, gathered), of,
                             1e-4, 1e-6));
  }
}

TEST(BlockSparse, OnMetaTensorsItHasItsShapes) {
  const auto plan = random_plan(12, 64, 64, 3, at::kMeta);
  const auto qkv = at::empty({4, 4096, 3, 12, 64}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16)).requires_grad_();
  kernels::set_played_device(c10::kCUDA);
  for (const char* way : {"torch", "kernel"}) {
    const testing::ScopedVariable by("LEVIN_BLOCK_SPARSE", way);
    const auto out = block_sparse_attention(qkv, {}, plan);
    EXPECT_EQ(out.sizes(), (std::vector<int64_t>{4, 4096, 768}));
    EXPECT_EQ(torch::autograd::grad({out}, {qkv}, {at::empty_like(out)})[0].sizes(), qkv.sizes());
  }
  const testing::ScopedVariable by("LEVIN_BLOCK_SPARSE", "kernels");
  EXPECT_THAT(error_of([&] { block_sparse_attention(qkv, {}, plan); }), HasSubstr("torch, kernel"));
  kernels::set_played_device(c10::kCPU);
}

TEST(BlockSparse, RefusesWhatDoesNotFit) {
  const auto plan = random_plan(2, 8, 3, 2);
  const auto fails = [&](std::vector<int64_t> sizes, const Tensor& mask = {}) {
    return error_of([&] { block_sparse_attention(at::zeros(sizes), mask, plan); });
  };
  EXPECT_THAT(fails({2, 24, 2, 2, 5}), HasSubstr("[B, T, 3, H, D]"));
  EXPECT_THAT(fails({2, 21, 3, 2, 5}), HasSubstr("2 heads and 21 tokens"));
  EXPECT_THAT(fails({2, 24, 3, 4, 5}), HasSubstr("4 heads"));
  EXPECT_THAT(fails({2, 24, 3, 2, 5}, at::zeros({2, 23})), HasSubstr("the mask [2, 23]"));
  EXPECT_THAT(error_of([] { kernels::block_plan({{{0, 3}}}, 4); }), HasSubstr("no block 3 of 3"));
  EXPECT_THAT(error_of([] { kernels::block_plan({{{}}}, 4); }), HasSubstr("block 1 sees nothing"));
}

}  // namespace
}  // namespace levin::block_sparse_tests
