#include "levin/kernels/cross_entropy/linear_cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/played_device.h"
#include "levin/testing/error_of.h"

namespace levin::linear_cross_entropy_tests {
namespace {

using at::Tensor;
using kernels::linear_cross_entropy_step;
using ::testing::HasSubstr;

TEST(LinearCrossEntropyStep, LeavesFactorsOfTorchsGradients) {
  torch::manual_seed(3);
  const auto x = torch::randn({6, 8}), w = torch::randn({24, 8});
  auto targets = torch::randint(0, 17, {6});
  targets[2] = -7;
  const auto here = x.clone().requires_grad_(), weight = w.clone().requires_grad_();
  const auto expected =
      at::cross_entropy_loss(here.mm(weight.narrow(0, 0, 17).t()), targets, {}, at::Reduction::None, -7);
  const auto gradients = torch::autograd::grad({expected.sum() * 0.25}, {here, weight});

  const auto losses = torch::full({6}, -1.0), grads = torch::full({6, 24}, -1.0);
  const auto [factors, scaled] = linear_cross_entropy_step(
      x, w, targets, losses, grads, {.classes = 17, .ignore_index = -7, .scale = torch::full({}, 0.25)});
  EXPECT_TRUE(torch::allclose(losses, expected.detach(), 1e-5, 1e-5));
  EXPECT_TRUE(torch::allclose(factors.unsqueeze(1) * grads.mm(w), gradients[0], 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(grads.t().mm(scaled), gradients[1], 1e-5, 1e-6));

  losses.fill_(-1);
  linear_cross_entropy_step(x, w, targets, losses, {}, {.classes = 17, .ignore_index = -7});
  EXPECT_TRUE(torch::allclose(losses, expected.detach(), 1e-5, 1e-5));
}

TEST(LinearCrossEntropyStep, RefusesWhatDoesNotFit) {
  const auto x = torch::zeros({2, 8}), w = torch::zeros({5, 8}), losses = torch::zeros({2});
  const auto targets = torch::zeros({2}, at::kLong), grads = torch::zeros({2, 5});
  const auto error = [&](const Tensor& rows, const Tensor& to, int64_t classes) {
    return testing::error_of([&] { linear_cross_entropy_step(rows, w, targets, losses, to, {.classes = classes}); });
  };
  EXPECT_EQ(error(x, grads, 5), "no error");
  EXPECT_THAT(error(torch::zeros({2, 7}), grads, 5), HasSubstr("needs x [N, D], weight [C, D]"));
  EXPECT_THAT(error(x, torch::zeros({2, 4}), 5), HasSubstr("grads must be Float [2, 5]"));
  EXPECT_THAT(error(x, grads.to(at::kBFloat16), 5), HasSubstr("grads must be Float [2, 5]"));
  EXPECT_THAT(error(x, grads, 6), HasSubstr("classes 6 are not in 1 to 5"));
}

TEST(LinearCrossEntropyStep, StandsForAGpuOnMetaTensors) {
  const auto bf16 = torch::dtype(at::kBFloat16).device(at::kMeta);
  const auto x = torch::empty({3, 16}, bf16);
  EXPECT_FALSE(kernels::has_linear_cross_entropy_step(x));
  EXPECT_FALSE(kernels::has_linear_cross_entropy_step(torch::zeros({3, 16}, at::kBFloat16)));
  kernels::set_played_device(c10::kCUDA);
  EXPECT_TRUE(kernels::has_linear_cross_entropy_step(x));
  EXPECT_FALSE(kernels::has_linear_cross_entropy_step(torch::empty({3, 15}, bf16)));
  EXPECT_FALSE(kernels::has_linear_cross_entropy_step(x.to(at::kHalf)));
  const auto [factors, scaled] = linear_cross_entropy_step(
      x, torch::empty({64, 16}, bf16), torch::empty({3}, bf16.dtype(at::kLong)),
      torch::empty({3}, bf16.dtype(at::kFloat)), torch::empty({3, 64}, bf16), {.classes = 50});
  kernels::set_played_device(c10::kCPU);
  EXPECT_EQ(factors.sizes(), (std::vector<int64_t>{3}));
  EXPECT_EQ(scaled.sizes(), x.sizes());
}

}  // namespace
}  // namespace levin::linear_cross_entropy_tests
