#include "levin/kernels/cross_entropy/cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/testing/error_of.h"

namespace levin::cross_entropy_tests {
namespace {

using at::Tensor;
using kernels::cross_entropy_losses;
using kernels::cross_entropy_step;
using ::testing::HasSubstr;

TEST(CrossEntropyStep, IsTorchsLossAndItsGradient) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const auto tolerance = dtype == at::kDouble ? 1e-12 : 1e-5;
    const auto padded = torch::randn({6, 24}, dtype) * 3;
    auto targets = torch::randint(0, 17, {6});
    targets[2] = -7;
    const auto logits = padded.narrow(1, 0, 17).clone().requires_grad_();
    const auto expected = at::cross_entropy_loss(logits, targets, {}, at::Reduction::None, -7);
    const auto gradient = torch::autograd::grad({expected.sum()}, {logits})[0];

    auto losses = torch::empty({6}, dtype);
    auto kept = padded.clone();
    cross_entropy_losses(kept, targets, losses, {.classes = 17, .ignore_index = -7});
    EXPECT_TRUE(torch::allclose(losses, expected.detach(), tolerance, tolerance));
    EXPECT_TRUE(kept.equal(padded));

    losses.fill_(-1);
    cross_entropy_step(kept, targets, losses,
                       {.classes = 17, .ignore_index = -7, .scale = torch::full({}, 0.25, dtype)});
    EXPECT_TRUE(torch::allclose(losses, expected.detach(), tolerance, tolerance));
    EXPECT_TRUE(torch::allclose(kept.narrow(1, 0, 17), gradient * 0.25, tolerance, tolerance));
    EXPECT_TRUE(kept.narrow(1, 17, 7).equal(torch::zeros({6, 7}, dtype)));
    EXPECT_TRUE(kept[2].equal(torch::zeros({24}, dtype)));
  }
}

TEST(CrossEntropyStep, TakesNoRowsAndRefusesWhatDoesNotFit) {
  auto losses = torch::empty({0});
  cross_entropy_step(torch::empty({0, 5}), torch::empty({0}, at::kLong), losses, {.classes = 5});
  const auto error = [](const Tensor& logits, const Tensor& targets, const Tensor& out, int64_t classes) {
    return testing::error_of([&] { cross_entropy_step(logits, targets, out, {.classes = classes}); });
  };
  const auto logits = torch::zeros({2, 5}), targets = torch::zeros({2}, at::kLong), out = torch::zeros({2});
  EXPECT_THAT(error(logits, targets.to(at::kInt), out, 5), HasSubstr("targets int64 [N]"));
  EXPECT_THAT(error(logits, targets, torch::zeros({3}), 5), HasSubstr("losses [N]"));
  EXPECT_THAT(error(logits, targets, out, 6), HasSubstr("classes 6 are not in 1 to 5"));
  EXPECT_THAT(error(logits, targets, out.to(at::kDouble), 5), HasSubstr("losses of Float logits cannot be Double"));
}

TEST(CrossEntropyStep, IsAnOperator) {
  cross_entropy_step(torch::zeros({1, 2}), torch::zeros({1}, at::kLong), torch::zeros({1}), {.classes = 2});
  EXPECT_TRUE(c10::Dispatcher::singleton().findSchema({"levin::cross_entropy_step", ""}).has_value());
  const auto meta = torch::empty({3, 8}, at::kMeta);
  cross_entropy_step(meta, torch::empty({3}, torch::dtype(at::kLong).device(at::kMeta)), torch::empty({3}, at::kMeta),
                     {.classes = 7});
}

TEST(CrossEntropyStep, ScaleInPlaceIsAProduct) {
  const auto x = torch::randn({7}), expected = x * 0.25;
  kernels::scale_in_place(x, torch::full({}, 0.25));
  EXPECT_TRUE(x.equal(expected));
  EXPECT_EQ(testing::error_of([&] { kernels::scale_in_place(x, torch::full({}, 0.25, at::kDouble)); }),
            "[scale_in_place] needs one factor of Float, got Double []");
}

TEST(CrossEntropyStep, ScaleRowsIsAProductWithAColumn) {
  const auto x = torch::randn({3, 5}), factors = torch::randn({3});
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto out = torch::empty({3, 5}, dtype);
    kernels::scale_rows(out, x, factors);
    EXPECT_TRUE(out.equal((x * factors.unsqueeze(1)).to(dtype)));
  }
  EXPECT_THAT(testing::error_of([&] { kernels::scale_rows(x, x, torch::randn({5})); }),
              HasSubstr("[scale_rows] needs float32 x [N, D], factors [N]"));
}

}  // namespace
}  // namespace levin::cross_entropy_tests
