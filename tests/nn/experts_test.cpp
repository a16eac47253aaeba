// The mixture of experts against the sum that it is said to be.
#include "levin/nn/experts/experts.h"

#include <cmath>
#include <numeric>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/nn/deferred_init.h"
#include "levin/nn/experts/exchange.h"
#include "levin/nn/experts/router_loss.h"
#include "levin/nn/experts/split.h"
#include "levin/testing/error_of.h"

namespace levin::experts_tests {
namespace {

using nn::Experts;
using nn::ExpertsOptions;
using testing::error_of;
using ::testing::HasSubstr;

Experts made(const ExpertsOptions& options) {
  torch::manual_seed(5);
  Experts experts(options);
  const at::NoGradGuard no_grad;
  for (auto& parameter : experts->parameters()) parameter.normal_(0, 0.5);
  return experts;
}

Tensor silu_gated(const Tensor& x, const Tensor& gate, const Tensor& up, const Tensor& down) {
  return at::linear(at::silu(at::linear(x, gate)) * at::linear(x, up), down);
}

/// Token by token, as the definition has it. `capacity`: tokens that an expert takes, the first ones; also how many
/// pairs were left out.
std::pair<Tensor, int64_t> by_definition(nn::ExpertsImpl& e, const Tensor& x, int64_t capacity = 1 << 30) {
  std::vector<int64_t> taken(static_cast<size_t>(e.options.count), 0);
  std::vector<Tensor> rows;
  int64_t dropped = 0;
  for (int64_t i = 0; i < x.size(0); ++i) {
    const auto p = at::softmax(at::linear(x[i], e.router), -1);
    auto [weights, chosen] = p.topk(e.options.per_token);
    if (e.options.normalized) weights = weights / weights.sum();
    auto sum = at::zeros_like(x[i]);
    for (int64_t j = 0; j < e.options.per_token; ++j) {
      const auto k = chosen[j].item<int64_t>();
      if (taken[static_cast<size_t>(k)]++ >= capacity) {
        ++dropped;
        continue;
      }
      sum = sum + weights[j] * silu_gated(x[i], e.gate[k], e.up[k], e.down[k]);
    }
    rows.push_back(sum);
  }
  return {at::stack(rows), dropped};
}

/// Gradients of the parameters and of x.
std::vector<Tensor> gradients(nn::ExpertsImpl& experts, const Tensor& x, const Tensor& y) {
  auto inputs = experts.parameters();
  inputs.push_back(x);
  const auto weights = torch::cos(torch::arange(y.numel(), torch::kFloat)).view_as(y);
  return torch::autograd::grad({(y * weights).sum()}, inputs);
}

void expect_equal(nn::ExpertsImpl& experts, const Tensor& y, const Tensor& wanted, const Tensor& x) {
  EXPECT_LT((y - wanted).abs().max().item<double>(), 1e-5);
  const auto got = gradients(experts, x, y), expected = gradients(experts, x, wanted);
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_LT((got[i] - expected[i]).abs().max().item<double>(),
              1e-5 * std::max(1.0, expected[i].abs().max().item<double>()))
        << i;
}

TEST(Experts, AreTheSumOfTheChosenOnes) {
  for (const int64_t per_token : {1, 2, 4, 6})
    for (const bool normalized : {true, false}) {
      SCOPED_TRACE(::testing::Message() << per_token << " " << normalized);
      auto experts = made({.count = 6, .per_token = per_token, .dim = 8, .width = 12, .normalized = normalized});
      const auto x = torch::randn({3, 5, 8}).requires_grad_();
      const auto y = experts(x);
      EXPECT_EQ(y.sizes(), x.sizes());
      expect_equal(*experts, y, by_definition(*experts, x.view({15, 8})).first.view_as(y), x);
    }
}

TEST(Experts, AllOfThemAlikeAreOneMlp) {
  auto experts = made({.count = 4, .per_token = 4, .dim = 8, .width = 12});
  {
    const at::NoGradGuard no_grad;
    for (auto* each : {&experts->gate, &experts->up, &experts->down}) each->copy_((*each)[0].clone().expand_as(*each));
  }
  const auto x = torch::randn({7, 8});
  const auto one = silu_gated(x, experts->gate[0], experts->up[0], experts->down[0]);
  EXPECT_LT((experts(x) - one).abs().max().item<double>(), 1e-5);
}

TEST(Experts, OfEqualProbabilitiesEachTokenHasDifferentOnes) {
  auto experts = made({.count = 5, .per_token = 3, .dim = 8, .width = 4});
  experts->router.data().zero_();
  nn::RouterRecords records;
  const auto x = torch::randn({6, 8});
  const auto y = experts(x);
  EXPECT_TRUE(at::equal(experts(x), y));
  ASSERT_EQ(records.records().size(), 2);
  const auto chosen = std::get<0>(records.records()[0].chosen.sort(1));
  EXPECT_TRUE(chosen.slice(1, 1).gt(chosen.slice(1, 0, -1)).all().item<bool>());
  EXPECT_LT((y - by_definition(*experts, x).first).abs().max().item<double>(), 1e-5);
}

TEST(Experts, AnExpertWithoutTokensHasAGradientOfZeros) {
  auto experts = made({.count = 4, .per_token = 2, .dim = 8, .width = 12});
  experts->router.data()[2].zero_();
  const auto x = torch::ones({6, 8});
  experts->router.data().abs_();
  experts->router.data()[2].fill_(-1);
  const auto y = experts(x);
  y.sum().backward();
  for (const auto& each : {experts->gate, experts->up, experts->down}) {
    EXPECT_EQ(each.grad()[2].abs().max().item<double>(), 0);
    EXPECT_GT(each.grad().abs().max().item<double>(), 0);
  }
}

TEST(Experts, ACapacityDropsTheLastTokens) {
  for (const double factor : {0.3, 0.7, 1.0, 4.0}) {
    SCOPED_TRACE(factor);
    auto experts = made({.count = 4, .per_token = 2, .dim = 8, .width = 12, .capacity_factor = factor});
    const auto x = torch::randn({13, 8}).requires_grad_();
    const auto y = experts(x);
    const auto capacity = static_cast<int64_t>(std::ceil(factor * 13 * 2 / 4));
    const auto [wanted, dropped] = by_definition(*experts, x, capacity);
    EXPECT_EQ(experts->dropped.item<int64_t>(), dropped);
    EXPECT_EQ(dropped > 0, factor < 1.5);
    expect_equal(*experts, y, wanted, x);
  }
}

TEST(Experts, AutocastDoesNotReachTheRouter) {
  auto experts = made({.count = 4, .per_token = 2, .dim = 8, .width = 16});
  const auto x = torch::randn({9, 8});
  const auto wanted = experts(x);
  nn::RouterRecords records;
  experts(x);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const auto y = experts(x);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(at::equal(records.records()[0].logits, records.records()[1].logits));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_LT((y.to(at::kFloat) - wanted).norm().item<double>(), 0.02 * wanted.norm().item<double>());
}

TEST(Experts, RunOnTensorsWithoutMemory) {
  for (const double factor : {0.0, 1.25}) {
    const ExpertsOptions options{.count = 4, .per_token = 2, .dim = 8, .width = 16, .capacity_factor = factor};
    auto experts = init_module([&] { return Experts(options); }, {.device = at::kMeta});
    const auto x = torch::randn({3, 5, 8}, at::kMeta).requires_grad_();
    const auto y = experts(x);
    EXPECT_EQ(y.sizes(), x.sizes());
    y.sum().backward();
    EXPECT_EQ(experts->gate.grad().sizes(), experts->gate.sizes());
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
}

TEST(Experts, LossesOfRouters) {
  auto experts = made({.count = 4, .per_token = 2, .dim = 8, .width = 4});
  experts->router.data().zero_();
  nn::RouterRecords records;
  experts(torch::randn({6, 8}));
  // Equal probabilities, whatever the load: experts * sum of load / 4 = per_token.
  EXPECT_NEAR(nn::balance_loss(records.records()).item<double>(), 2, 1e-6);
  EXPECT_NEAR(nn::router_z_loss(records.records()).item<double>(), std::log(4.0) * std::log(4.0), 1e-6);
  const auto mask = at::tensor({1, 1, 0, 0, 1, 0});
  EXPECT_NEAR(nn::balance_loss(records.records(), mask).item<double>(), 2, 1e-6);
  EXPECT_THAT(error_of([&] { nn::balance_loss(records.records(), at::ones({5})); }), HasSubstr("mask of 5 tokens"));
  EXPECT_THAT(error_of([&] { nn::balance_loss({}); }), HasSubstr("no layer"));
}

TEST(Experts, ThePlanOfAnExchangeSortsByExpert) {
  // Three experts on two ranks: 0 and 1, and 2. Rank 0 has 2, 0, 1 rows for them, rank 1 has 1, 3, 0.
  const std::vector<std::vector<int64_t>> counts{{2, 0, 1}, {1, 3, 0}};
  const auto first = nn::plan_exchange(counts, 0), second = nn::plan_exchange(counts, 1);
  EXPECT_EQ(first.sent, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(first.received, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(first.rows, (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(first.order, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(second.received, (std::vector<int64_t>{1, 0}));
  const auto third = nn::plan_exchange({{1, 2}, {2, 1}}, 0);
  EXPECT_EQ(third.rows, (std::vector<int64_t>{3}));
  const auto both = nn::plan_exchange({{1, 2, 0, 0}, {2, 1, 0, 0}}, 0);
  EXPECT_EQ(both.order, (std::vector<int64_t>{0, 3, 4, 1, 2, 5}));
}

TEST(Experts, WhatIsNotAllowedIsOneLine) {
  EXPECT_THAT(error_of([] { Experts(ExpertsOptions{.count = 2, .per_token = 3, .dim = 4, .width = 4}); }),
              HasSubstr("3 experts per token of 2 in all"));
  EXPECT_THAT(error_of([] { Experts(ExpertsOptions{.count = 2, .per_token = 1, .dim = 0, .width = 4}); }),
              HasSubstr("must be positive"));
  EXPECT_THAT(error_of([] { Experts(ExpertsOptions{.count = 2, .dim = 4, .width = 4, .capacity_factor = -1}); }),
              HasSubstr("capacity_factor -1"));
}

}  // namespace
}  // namespace levin::experts_tests
