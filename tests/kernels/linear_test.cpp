// linear, column_sum and casts of weights on the CPU: torch's own, and the backward that CUDA uses.
#include "levin/kernels/linear/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/error.h"
#include "levin/kernels/linear/linear_detail.h"
#include "levin/kernels/linear/weight_casts_detail.h"
#include "levin/kernels/linear/weight_casts_launch.h"
#include "levin/kernels/played_device.h"
#include "levin/nn/layers.h"
#include "levin/nn/saved_tensors.h"
#include "levin/testing/error_of.h"
#include "levin/testing/gradients.h"
#include "levin/testing/operator_counts.h"
#include "levin/testing/tensors.h"

namespace levin::kernels {
namespace {

using testing::same_bytes;

std::vector<Tensor> layer(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return {torch::randn(sizes).to(dtype).set_requires_grad(true),
          torch::randn({6, sizes.back()}).to(dtype).set_requires_grad(true),
          torch::randn({6}).to(dtype).set_requires_grad(true)};
}

std::vector<Tensor> copies(const std::vector<Tensor>& list) {
  std::vector<Tensor> result;
  for (const auto& each : list) result.push_back(each.detach().clone().set_requires_grad(true));
  return result;
}

TEST(FusedLinear, IsTorchsOnTheCpu) {
  const auto mine = layer({3, 5, 4}), theirs = copies(mine);
  const auto a = kernels::linear(mine[0], mine[1], mine[2]), b = at::linear(theirs[0], theirs[1], theirs[2]);
  EXPECT_TRUE(same_bytes(a, b));
  a.square().sum().backward();
  b.square().sum().backward();
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bytes(mine[i].grad(), theirs[i].grad()));
  EXPECT_TRUE(same_bytes(kernels::linear(mine[0], mine[1]), at::linear(theirs[0], theirs[1])));
}

TEST(FusedLinear, GradientsAreThoseOfDifferences) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{3, 2, 4}, {5, 4}, {4}}) {
    const auto inputs = layer(sizes, at::kDouble);
    const auto f = [](const std::vector<Tensor>& in) {
      return detail::fused_linear(in[0], in[1], in[2], in[1]).sin().sum();
    };
    EXPECT_LT(testing::gradient_error(f, inputs), 1e-7);
    EXPECT_LT(testing::second_gradient_error(f, inputs), 1e-4);
  }
}

TEST(FusedLinear, FloatWeightsBehindNarrowProducts) {
  const auto mine = layer({16, 4}), theirs = copies(mine);
  const auto narrow = mine[0].to(at::kBFloat16);
  const auto out = detail::fused_linear(narrow, mine[1], mine[2], mine[1].to(at::kBFloat16));
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  out.sum().backward();
  at::linear(theirs[0], theirs[1], theirs[2]).sum().backward();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(mine[i].grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::allclose(mine[i].grad(), theirs[i].grad(), 0.05, 0.05)) << i;
  }
  const auto again = detail::fused_linear(narrow.detach(), mine[1], mine[2], mine[1].to(at::kBFloat16));
  const auto grads = torch::autograd::grad({again.sum()}, {mine[1]}, {}, true, /*create_graph=*/true);
  EXPECT_TRUE(torch::allclose(grads[0], mine[1].grad(), 0.05, 0.05));
}

TEST(FusedLinear, WithoutABias) {
  for (const bool cast : {false, true}) {
    const auto mine = layer({16, 4}), theirs = copies(mine);
    const auto x = cast ? mine[0].to(at::kBFloat16) : mine[0];
    const auto out = detail::fused_linear(x, mine[1], {}, cast ? mine[1].to(at::kBFloat16) : mine[1]);
    out.sum().backward();
    const auto right = at::linear(theirs[0], theirs[1]);
    right.sum().backward();
    EXPECT_TRUE(torch::allclose(out.to(at::kFloat), right, 0.05, 0.05));
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(torch::allclose(mine[i].grad(), theirs[i].grad(), 0.05, 0.05)) << i;
  }
}

TEST(FusedLinear, FrozenWeightsGetNoGradient) {
  const auto all = layer({5, 4});
  all[1].set_requires_grad(false);
  detail::fused_linear(all[0], all[1], all[2], all[1]).sum().backward();
  EXPECT_FALSE(all[1].grad().defined());
  EXPECT_TRUE(torch::equal(all[2].grad(), torch::full({6}, 5.0f)));
  EXPECT_TRUE(all[0].grad().defined());
}

TEST(FusedLinearActivation, GradientsAreThoseOfDifferences) {
  for (const auto kind : {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu})
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{3, 2, 4}, {5, 4}, {4}}) {
      const auto inputs = layer(sizes, at::kDouble);
      const auto f = [&](const std::vector<Tensor>& in) {
        return detail::fused_linear_activation(in[0], in[1], in[2], in[1], kind).sin().sum();
      };
      EXPECT_LT(testing::gradient_error(f, inputs), 1e-7);
      EXPECT_LT(testing::second_gradient_error(f, inputs), 1e-4);
    }
}

TEST(FusedLinearActivation, IsBothOnTheCpu) {
  const auto mine = layer({3, 5, 4}), theirs = copies(mine);
  const auto a = linear_activation(mine[0], mine[1], mine[2], Activation::kGelu);
  const auto b = at::gelu(at::linear(theirs[0], theirs[1], theirs[2]));
  EXPECT_TRUE(same_bytes(a, b));
  a.square().sum().backward();
  b.square().sum().backward();
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bytes(mine[i].grad(), theirs[i].grad()));
  EXPECT_TRUE(same_bytes(linear_activation(mine[0], mine[1], {}, Activation::kRelu),
                         at::relu(at::linear(theirs[0], theirs[1]))));
}

TEST(FusedLinearActivation, FloatWeightsBehindNarrowProducts) {
  const auto mine = layer({16, 4}), theirs = copies(mine);
  const auto out = detail::fused_linear_activation(mine[0].to(at::kBFloat16), mine[1], mine[2],
                                                   mine[1].to(at::kBFloat16), Activation::kGeluTanh);
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  out.sum().backward();
  at::gelu(at::linear(theirs[0], theirs[1], theirs[2]), "tanh").sum().backward();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(mine[i].grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::allclose(mine[i].grad(), theirs[i].grad(), 0.05, 0.1)) << i;
  }
}

TEST(FusedLinearActivation, OnlyGradientsThatAreAskedFor) {
  for (size_t frozen = 0; frozen < 3; ++frozen) {
    const auto all = layer({5, 4});
    all[frozen].set_requires_grad(false);
    detail::fused_linear_activation(all[0], all[1], all[2], all[1], Activation::kGelu).sum().backward();
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(all[i].grad().defined(), i != frozen) << i;
  }
}

/// As an estimate of a step on a GPU in mixed precision sees it: float gradients without 16-bit ones before them.
TEST(FusedLinear, OnMetaTensors) {
  struct Played {
    ~Played() {
      set_played_device(at::kCPU);
      set_played_autocast(nullptr);
    }
  } played;
  set_played_device(at::kCUDA);
  const PlayedAutocast autocast{at::kBFloat16, [](const Tensor& tensor) { return tensor.to(at::kBFloat16); }};
  set_played_autocast(&autocast);
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto x = torch::empty({32, 4}, meta).set_requires_grad(true);
  const auto weight = torch::empty({6, 4}, meta).set_requires_grad(true);
  const auto bias = torch::empty({6}, meta).set_requires_grad(true);
  SavedBytes saved;
  saved.ignore(weight);
  const auto out = kernels::linear(x, weight, bias);
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_EQ(saved.bytes(), (32 * 4 + 6 * 4) * 2);
  set_played_autocast(nullptr);
  out.backward(torch::empty_like(out));
  for (const auto& each : {x, weight, bias}) EXPECT_EQ(each.grad().scalar_type(), at::kFloat);
}

TEST(ColumnSum, AddsRows) {
  const auto x = torch::randn({9, 5});
  EXPECT_TRUE(same_bytes(column_sum(x, at::kFloat), x.sum(0)));
  EXPECT_EQ(column_sum(x.to(at::kBFloat16), at::kFloat).scalar_type(), at::kFloat);
  EXPECT_THAT(testing::error_of([&] { column_sum(x[0], at::kFloat); }), ::testing::HasSubstr("a matrix [N, C]"));
}

TEST(CastWeights, IsACopyOnTheCpu) {
  const std::vector<Tensor> from{torch::randn({5, 3}).set_requires_grad(true), torch::randn({4, 6}).t(),
                                 torch::empty({0}), torch::tensor({NAN, INFINITY, -0.0f, 1e-40f, 3.4e38f})};
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    std::vector<Tensor> to;
    for (const auto& each : from) to.push_back(torch::empty(each.sizes(), dtype));
    const testing::OperatorCounts counted;
    detail::cast_weights(to, from);
    EXPECT_EQ(counted["levin::cast_weights_"], 1);
    for (size_t i = 0; i < from.size(); ++i) {
      EXPECT_TRUE(same_bytes(to[i], from[i].detach().to(dtype).contiguous())) << i;
      EXPECT_FALSE(to[i].requires_grad());
    }
  }
  detail::cast_weights({}, {});
  EXPECT_THAT(testing::error_of([&] { detail::cast_weights({}, from); }), ::testing::HasSubstr("4 weights and 0"));
}

/// Every element of every entry belongs to one block of one table.
TEST(CastWeights, TablesHaveEveryElementOnce) {
  using detail::CastEntry, detail::CastTable, detail::kCastElements;
  std::vector<CastEntry> entries(2 * CastTable::kEntries + 7);
  for (size_t i = 0; i < entries.size(); ++i) entries[i].numel = i == 5 ? 3 * kCastElements : i == 6 ? 1 : 1 + 999 * i;
  size_t next = 0;
  int tables = 0;
  detail::each_table<CastTable>(entries, kCastElements, [&](const CastTable& table) {
    ++tables;
    ASSERT_LE(table.count, CastTable::kEntries);
    EXPECT_EQ(table.first_block[0], 0);
    for (int i = 0; i < table.count; ++i, ++next) {
      EXPECT_EQ(table.entries[i].numel, entries[next].numel);
      const int64_t room = (table.first_block[i + 1] - table.first_block[i]) * kCastElements;
      EXPECT_GE(room, entries[next].numel);
      EXPECT_LT(room - entries[next].numel, kCastElements);
    }
  });
  EXPECT_EQ(next, entries.size());
  EXPECT_EQ(tables, 3);
}

TEST(LinearLayer, IsStillTorchs) {
  nn::Linear mine(4, 3);
  EXPECT_NE(mine->as<torch::nn::LinearImpl>(), nullptr);
  EXPECT_EQ(class_name(*mine), "Linear");
  const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(mine->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_TRUE(torch::equal(copy->weight, mine->weight));
}

}  // namespace
}  // namespace levin::kernels
