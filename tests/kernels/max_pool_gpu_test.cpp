// max_pool2d on the GPU against torch's on the CPU. Skipped where there is none.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/max_pool.h"
#include "levin/testing/gpu.h"

namespace levin::kernels {
namespace {

class MaxPoolOnCuda : public levin::testing::GpuTest {};

constexpr auto kLast = at::MemoryFormat::ChannelsLast;
const MaxPoolWindow kStem{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};

Tensor plain(const Tensor& x, const MaxPoolWindow& w) {
  return at::max_pool2d(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode);
}

bool is_fused(const Tensor& y) {
  return y.grad_fn() && y.grad_fn()->name().find("FusedMaxPool") != std::string::npos;
}

/// What comes out is the same number, and its gradient goes to the same pixel; where windows share one, gradients are
/// added up and rounded.
void expect_torchs(const Tensor& values, at::ScalarType dtype, const MaxPoolWindow& w) {
  const auto x = values.to(dtype).to(at::kCUDA).contiguous(kLast).detach().requires_grad_();
  const auto reference = x.detach().cpu().to(at::kDouble).contiguous().requires_grad_();
  const auto found = max_pool2d(x, w), expected = plain(reference, w);
  EXPECT_TRUE(is_fused(found));
  EXPECT_EQ(found.scalar_type(), dtype);
  EXPECT_TRUE(found.is_contiguous(kLast));
  EXPECT_TRUE(found.detach().cpu().to(at::kDouble).allclose(expected, 0, 0, /*equal_nan=*/true));
  const auto grad = torch::randn(expected.sizes()).to(dtype);
  const auto dx = torch::autograd::grad({found}, {x}, {grad.cuda()})[0];
  const auto dx_expected = torch::autograd::grad({expected}, {reference}, {grad.to(at::kDouble)})[0];
  EXPECT_TRUE(dx.is_contiguous(kLast));
  const double most = dtype == at::kDouble ? 1e-14 : dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 1e-3 : 8e-3;
  EXPECT_TRUE(dx.cpu().to(at::kDouble).allclose(dx_expected, most, most))
      << dtype << " " << (dx.cpu().to(at::kDouble) - dx_expected).abs().max();
}

TEST_F(MaxPoolOnCuda, IsTorchs) {
  const std::vector<MaxPoolWindow> windows{kStem,
                                           {.kernel = {2, 2}, .stride = {2, 2}},
                                           {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}},
                                           {.kernel = {5, 3}, .stride = {1, 2}, .padding = {2, 0}},
                                           {.kernel = {1, 2}, .stride = {3, 4}},
                                           {.kernel = {16, 16}, .stride = {5, 5}, .padding = {8, 8}}};
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (const auto& w : windows)
      for (const int64_t channels : {1, 3, 8, 24, 64, 136})
        expect_torchs(torch::randn({3, channels, 17, 22}), dtype, w);
  expect_torchs(torch::randn({8, 64, 112, 112}), at::kBFloat16, kStem);
}

TEST_F(MaxPoolOnCuda, OfEqualNumbersTheFirstWins) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t channels : {5, 64}) {
      expect_torchs(torch::randint(0, 2, {3, channels, 17, 22}).to(at::kFloat), dtype, kStem);
      expect_torchs(torch::full({3, channels, 17, 22}, -INFINITY), dtype, kStem);
    }
}

TEST_F(MaxPoolOnCuda, WhatIsNoNumberWins) {
  auto x = torch::randn({3, 64, 17, 22});
  x.masked_fill_(torch::rand_like(x) < 0.1, NAN);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) expect_torchs(x, dtype, kStem);
}

TEST_F(MaxPoolOnCuda, TakesWhatDoesNotStandAtVectorsAndGradientsOfAnyLayout) {
  const auto flat = torch::randn({2 * 10 * 10 * 64 + 1}, torch::dtype(at::kBFloat16).device(at::kCUDA));
  const auto x = flat.narrow(0, 1, 2 * 10 * 10 * 64).view({2, 10, 10, 64}).permute({0, 3, 1, 2}).detach();
  x.requires_grad_();
  const auto aligned = x.detach().clone(kLast).requires_grad_();
  const auto y = max_pool2d(x, kStem), z = max_pool2d(aligned, kStem);
  EXPECT_TRUE(is_fused(y));
  EXPECT_TRUE(torch::equal(y, z));
  const auto grad = torch::randn({2, 64, 5, 5}, at::kCUDA).to(at::kBFloat16);
  EXPECT_TRUE(torch::equal(torch::autograd::grad({y}, {x}, {grad})[0],
                           torch::autograd::grad({z}, {aligned}, {grad.contiguous(kLast)})[0]));
}

TEST_F(MaxPoolOnCuda, CanBeDifferentiatedTwice) {
  const auto x = torch::randn({2, 6, 9, 9}, torch::dtype(at::kDouble).device(at::kCUDA));
  const auto mine = x.contiguous(kLast).detach().requires_grad_(), theirs = x.detach().clone().requires_grad_();
  const auto second = [](const Tensor& y, const Tensor& in) {
    const auto first = torch::autograd::grad({y.pow(3).sum()}, {in}, {}, true, true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {in})[0];
  };
  EXPECT_TRUE(second(max_pool2d(mine, kStem), mine).allclose(second(plain(theirs, kStem), theirs), 1e-12, 1e-12));
}

TEST_F(MaxPoolOnCuda, OthersAreTorchs) {
  const auto x = torch::randn({2, 8, 9, 9}, at::kCUDA).requires_grad_();
  EXPECT_FALSE(is_fused(max_pool2d(x, kStem)));
  const auto last = x.detach().contiguous(kLast).requires_grad_();
  for (const auto& w : {MaxPoolWindow{.kernel = {3, 3}, .stride = {2, 2}, .ceil_mode = true},
                        MaxPoolWindow{.kernel = {2, 2}, .stride = {2, 2}, .dilation = {2, 2}}}) {
    const auto y = max_pool2d(last, w);
    EXPECT_FALSE(is_fused(y));
    EXPECT_TRUE(torch::equal(y, plain(last, w)));
  }
  EXPECT_THROW(max_pool2d(last, {.kernel = {3, 3}, .padding = {2, 2}}), c10::Error);
}

}  // namespace
}  // namespace levin::kernels
