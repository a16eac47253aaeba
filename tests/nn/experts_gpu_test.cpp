// The grouped product of bfloat16 against a product for each expert, and the GPU against the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/nn/experts/experts.h"
#include "levin/nn/experts/router_loss.h"
#include "levin/testing/gpu.h"

namespace levin::experts_gpu_tests {
namespace {

class ExpertsGpu : public testing::GpuTest {};

/// Puts the choice back at the end of a test.
struct OneProduct {
  explicit OneProduct(bool allowed) { nn::allow_one_product() = allowed; }
  ~OneProduct() { nn::allow_one_product() = true; }
};

double difference(const Tensor& got, const Tensor& wanted) {
  const auto a = got.to(at::kCPU, at::kFloat), b = wanted.to(at::kCPU, at::kFloat);
  return (a - b).norm().item<double>() / std::max(1e-6, b.norm().item<double>());
}

/// The result and gradients of the inputs.
std::vector<Tensor> grouped(const Tensor& x, const Tensor& weight, const std::vector<int64_t>& counts, bool one) {
  const OneProduct scope(one);
  auto input = x.detach().clone().requires_grad_(), matrix = weight.detach().clone().requires_grad_();
  nn::GroupSizes sizes(counts, x);
  EXPECT_EQ(nn::is_one_product(input, matrix), one);
  const auto y = nn::grouped_linear(input, matrix, sizes);
  (y * torch::cos(torch::arange(y.numel(), y.options())).view_as(y)).sum().backward();
  return {y.detach(), input.grad(), matrix.grad()};
}

TEST_F(ExpertsGpu, TheGroupedProductIsThatOfEachGroup) {
  torch::manual_seed(1);
  // Groups without rows at the beginning, inside and at the end; odd numbers of rows; one row.
  for (const auto& counts :
       {std::vector<int64_t>{0, 7, 0, 130, 1, 64, 0}, {16, 16, 16, 16, 16, 16, 16}, {0, 0, 0, 3, 0, 0, 0}}) {
    int64_t rows = 0;
    for (const auto count : counts) rows += count;
    const auto bf16 = torch::TensorOptions(torch::kCUDA).dtype(torch::kBFloat16);
    const auto x = torch::randn({rows, 72}, bf16), weight = torch::randn({7, 40, 72}, bf16);
    // Memory that was used before is not zero.
    torch::full({1 << 22}, std::nan(""), bf16);
    const auto one = grouped(x, weight, counts, true), each = grouped(x, weight, counts, false);
    for (size_t i = 0; i < one.size(); ++i) {
      ASSERT_TRUE(one[i].isfinite().all().item<bool>()) << i;
      EXPECT_LT(difference(one[i], each[i]), 5e-3) << i;
    }
    for (size_t g = 0; g < counts.size(); ++g) {
      if (counts[g] == 0) {
        EXPECT_EQ(one[2][static_cast<int64_t>(g)].abs().max().item<double>(), 0) << g;
      }
    }
  }
}

TEST_F(ExpertsGpu, ALayerIsWhatItIsOnTheCpu) {
  for (const double factor : {0.0, 0.8}) {
    torch::manual_seed(2);
    const nn::ExpertsOptions options{.count = 6, .per_token = 2, .dim = 32, .width = 48, .capacity_factor = factor};
    nn::Experts cpu(options), gpu(options);
    gpu->to(at::kCUDA);
    {
      const at::NoGradGuard no_grad;
      const auto from = cpu->parameters(), to = gpu->parameters();
      for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i].normal_(0, 0.2));
    }
    const auto x = torch::randn({3, 17, 32});
    const auto expected = cpu(x);
    const auto got = gpu(x.cuda());
    EXPECT_LT(difference(got, expected), 1e-3);
    expected.square().sum().backward();
    got.square().sum().backward();
    const auto wanted = cpu->parameters(), found = gpu->parameters();
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_LT(difference(found[i].grad(), wanted[i].grad()), 2e-3) << i;
    if (factor > 0) {
      EXPECT_EQ(gpu->dropped.item<int64_t>(), cpu->dropped.item<int64_t>());
    }
    // Bit by bit the same again: sums have a fixed order.
    const auto before = found[1].grad().clone();
    gpu->zero_grad();
    gpu(x.cuda()).square().sum().backward();
    EXPECT_TRUE(torch::equal(found[1].grad(), before));
  }
}

TEST_F(ExpertsGpu, Bfloat16TakesTheGroupedProductAndEqualsTheLoop) {
  torch::manual_seed(3);
  nn::Experts experts(nn::ExpertsOptions{.count = 8, .per_token = 2, .dim = 64, .width = 96, .std = 0.2});
  experts->to(at::kCUDA, at::kBFloat16);
  const auto x = torch::randn({512, 64}, torch::TensorOptions(torch::kCUDA).dtype(torch::kBFloat16));
  const auto run = [&](bool one) {
    const OneProduct scope(one);
    experts->zero_grad();
    const auto y = experts(x);
    y.square().sum().backward();
    std::vector<Tensor> all{y.detach()};
    for (const auto& parameter : experts->parameters()) all.push_back(parameter.grad().clone());
    return all;
  };
  const auto one = run(true), loop = run(false);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_LT(difference(one[i], loop[i]), 1e-2) << i;
}

}  // namespace
}  // namespace levin::experts_gpu_tests
