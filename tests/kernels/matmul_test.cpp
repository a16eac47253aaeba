// Products by levin's operators where there is no GPU: on the CPU, and on meta tensors that stand for CUDA's.
#include "levin/kernels/linear/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/devices/flop_counter.h"
#include "levin/kernels/linear/linear.h"
#include "levin/kernels/played_device.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/testing/error_of.h"

namespace levin::kernels {
namespace {

using detail::GemmWish;
using ::testing::HasSubstr;

class PlayedCuda : public ::testing::Test {
 protected:
  void SetUp() override { set_played_device(at::kCUDA); }
  void TearDown() override { set_played_device(at::kCPU); }
  const at::TensorOptions meta_ = at::TensorOptions(at::kMeta).dtype(at::kBFloat16);
};

TEST(Matmul, OnTheCpu) {
  const auto a = torch::randn({5, 3}), b = torch::randn({3, 4}), bias = torch::randn({4});
  EXPECT_TRUE(torch::equal(detail::matmul(a, b, {}, at::kFloat), at::mm(a, b)));
  EXPECT_TRUE(torch::equal(detail::matmul(a, b, bias, at::kFloat), at::addmm(bias, a, b)));
  const auto [product, sums] = detail::matmul_and_sums(a, b, at::kDouble, at::kBFloat16);
  EXPECT_TRUE(torch::equal(product, at::mm(a, b).to(at::kDouble)));
  EXPECT_TRUE(torch::equal(sums, a.sum(1).to(at::kBFloat16)));
}

TEST(Matmul, IntoWhatIsThere) {
  const auto a = torch::randn({5, 3}), b = torch::randn({3, 4}), out = torch::ones({5, 4}, at::kDouble);
  detail::matmul_into(out, a, b, /*add=*/true);
  EXPECT_TRUE(torch::equal(out, at::mm(a, b).to(at::kDouble) + 1));
  detail::matmul_into(out, a, b);
  EXPECT_TRUE(torch::equal(out, at::mm(a, b).to(at::kDouble)));
}

TEST(Matmul, LeavesTheCpuToTorch) {
  EXPECT_FALSE(detail::runs_matmul(torch::ones({2, 2}, at::kBFloat16)));
}

TEST(Matmul, WordsOfTheVariable) {
  EXPECT_EQ(detail::gemm_wish("lt"), GemmWish::kLt);
  EXPECT_EQ(detail::gemm_wish("first"), GemmWish::kFirst);
  EXPECT_EQ(detail::gemm_wish("torch"), GemmWish::kTorch);
  EXPECT_EQ(detail::gemm_wish("best"), GemmWish::kBest);
  EXPECT_THAT(testing::error_of([] { detail::gemm_wish("cublas"); }), HasSubstr("LEVIN_GEMM"));
}

TEST(Matmul, ResultsCanBeKeptByCheckpoints) {
  EXPECT_THAT(CheckpointOptions::matrix_products(), ::testing::Contains("levin::matmul"));
}

TEST_F(PlayedCuda, OfSixteenBitsOnly) {
  EXPECT_TRUE(detail::runs_matmul(torch::empty({2, 2}, meta_)));
  EXPECT_TRUE(detail::runs_matmul(torch::empty({2, 2}, meta_.dtype(at::kHalf))));
  EXPECT_FALSE(detail::runs_matmul(torch::empty({2, 2}, meta_.dtype(at::kFloat))));
}

/// Forward, gradient of the input, gradients of weight and bias: three products, no float after 16 bits.
TEST_F(PlayedCuda, ALayerIsThreeProducts) {
  const auto x = torch::empty({2, 8, 4}, meta_).set_requires_grad(true);
  const auto weight = torch::empty({6, 4}, meta_).set_requires_grad(true);
  const auto bias = torch::empty({6}, meta_).set_requires_grad(true);
  const FlopCounter counter;
  const auto y = kernels::linear(x, weight, bias);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 8, 6}));
  EXPECT_FALSE(y.is_view());
  y.backward(torch::empty_like(y));
  EXPECT_EQ(counter.flops(), 3 * 2.0 * 16 * 4 * 6);
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(weight.grad().sizes(), weight.sizes());
  EXPECT_EQ(bias.grad().sizes(), bias.sizes());
  for (const auto& each : {x, weight, bias}) EXPECT_EQ(each.grad().scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace levin::kernels
