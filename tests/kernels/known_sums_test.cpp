// Sums of columns that a kernel has computed on the way, and the layers that take them for the gradients of biases.
#include "levin/kernels/linear/known_sums.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/linear/linear_detail.h"
#include "levin/kernels/norm/residual_norm_detail.h"
#include "levin/testing/scoped_variable.h"

namespace levin::kernels::detail {
namespace {

TEST(KnownSums, AreOfOneTensorOrAViewOfIt) {
  const auto grad = torch::randn({2, 3, 2, 4}), sums = grad.flatten(0, 1).flatten(1).sum(0);
  remember_column_sums(grad, sums);
  EXPECT_TRUE(torch::equal(take_column_sums(grad.view({6, 8}), at::kFloat), sums));
  EXPECT_FALSE(take_column_sums(grad.view({6, 8}), at::kFloat).defined()) << "taken once";
  remember_column_sums(grad, sums);
  EXPECT_EQ(take_column_sums(grad.view({6, 8}), at::kBFloat16).scalar_type(), at::kBFloat16);
}

TEST(KnownSums, AreNotThoseOfAnother) {
  const auto grad = torch::randn({8, 8});
  const auto taken_for = [&](const Tensor& other) {
    remember_column_sums(grad, grad.sum(0));
    return take_column_sums(other, at::kFloat).defined();
  };
  EXPECT_TRUE(taken_for(grad));
  EXPECT_FALSE(taken_for(grad.clone()));
  EXPECT_FALSE(taken_for(grad.t())) << "its columns are rows";
  EXPECT_FALSE(taken_for(grad.view({4, 16}))) << "other columns";
  EXPECT_FALSE(taken_for(grad.narrow(0, 0, 4)));
  remember_column_sums(grad, grad.sum(0));
  grad.mul_(2);
  EXPECT_FALSE(take_column_sums(grad, at::kFloat).defined()) << "it has changed";
  remember_column_sums(grad, {});
  EXPECT_FALSE(take_column_sums(grad, at::kFloat).defined());
}

TEST(KnownSums, HoldNoGradient) {
  auto grad = torch::randn({4, 4});
  const auto storage = grad.storage().getWeakStorageImpl();
  remember_column_sums(grad, grad.sum(0));
  grad.reset();
  EXPECT_EQ(storage.use_count(), 0u);
  EXPECT_FALSE(take_column_sums(torch::randn({4, 4}), at::kFloat).defined());
}

/// Gradients of x, weight and bias of a layer whose result is the branch of a norm; `twice`: and is used elsewhere too.
std::vector<Tensor> gradients(at::ScalarType branch_dtype, bool twice) {
  torch::manual_seed(11);
  const auto x = torch::randn({6, 5}).to(branch_dtype).set_requires_grad(true);
  const auto weight = torch::randn({8, 5}).set_requires_grad(true), bias = torch::randn({8}).set_requires_grad(true);
  const auto stream = torch::randn({6, 8}).set_requires_grad(true);
  const auto branch = fused_linear(x, weight, bias, weight.to(branch_dtype));
  const auto [output, h] =
      fused_residual_norm(stream, branch, torch::rand({8}), torch::randn({8}), 1e-5, false, 0, at::kFloat);
  auto loss = output.sin().sum() + h.square().mean();
  if (twice) loss = loss + branch.cos().sum();
  loss.backward();
  return {x.grad(), weight.grad(), bias.grad(), stream.grad()};
}

TEST(KnownSums, GiveTheGradientsOfBiases) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool twice : {false, true}) {
      const auto with = [&](const char* sums) {
        const testing::ScopedVariable wanted("LEVIN_BIAS_SUMS", sums);
        return gradients(dtype, twice);
      };
      const auto plain = with("0"), known = with("1");
      for (const size_t i : {0, 1, 3}) EXPECT_TRUE(torch::equal(known[i], plain[i])) << i;
      EXPECT_TRUE(torch::allclose(known[2], plain[2], 1e-2, dtype == at::kFloat ? 1e-5 : 3e-2)) << known[2] - plain[2];
      // In 16 bits the sum of what was not rounded is another one; else nobody has taken it.
      if (dtype == at::kBFloat16) {
        EXPECT_EQ(torch::equal(known[2], plain[2]), twice);
      }
    }
}

}  // namespace
}  // namespace levin::kernels::detail
