#include "levin/compile/fuse.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/compile/fused_call.h"
#include "levin/compile/run.h"
#include "levin/compile/trace.h"

namespace levin::compile {
namespace {

using torch::Tensor;
using Results = std::vector<Tensor>;

struct Fused {
  size_t groups = 0, nodes = 0;
  std::string text;
};

/// Runs the step eagerly and fused, on the same inputs, and compares what it returns.
Fused expect_as_eager(const std::function<Results()>& step, double tolerance = 1e-5) {
  Results results;
  auto traced = trace([&] { results = step(); });
  EXPECT_TRUE(traced.reason.empty()) << traced.reason;
  Results eager;
  for (const auto& x : results) eager.push_back(x.detach().clone());
  auto& graph = traced.graph;
  fuse(graph);
  graph.check();
  Fused fused{.nodes = graph.nodes.size(), .text = graph.print()};
  for (const auto& node : graph.nodes) fused.groups += dynamic_cast<const FusedCall*>(node.call.get()) != nullptr;
  {
    const torch::NoGradGuard no_grad;
    for (auto& x : results) x.detach().fill_(7);
  }
  Program program(std::move(graph));
  for (int round = 0; round < 2; ++round) {
    program.run();
    for (size_t i = 0; i < results.size(); ++i) {
      const auto a = results[i].detach().to(torch::kDouble), b = eager[i].to(torch::kDouble);
      const auto finite = torch::where(b.isfinite(), b.abs(), 0);
      const double scale = b.numel() ? std::max(1.0, finite.max().item<double>()) : 1;
      EXPECT_TRUE(torch::allclose(a, b, tolerance, tolerance * scale, /*equal_nan=*/true))
          << "result " << i << " differs by " << (a - b).abs().max().item<double>() << "\n"
          << fused.text;
    }
  }
  return fused;
}

Tensor gelu_by_hand(const Tensor& h) {
  return 0.5 * h * (1.0 + torch::tanh(std::sqrt(2.0 / M_PI) * (h + 0.044715 * torch::pow(h, 3.0))));
}

TEST(Fuse, GeluByHandIsOneGroupEachWay) {
  torch::manual_seed(0);
  const auto x = torch::randn({32, 48}), w = torch::randn({48, 48}, torch::requires_grad());
  const auto fused = expect_as_eager([&] {
    const auto h = torch::matmul(x, w);
    const auto y = torch::matmul(gelu_by_hand(h), w).sum();
    return torch::autograd::grad({y}, {w});
  });
  // Backward computes tanh again from h: only the products' operands and h are kept.
  EXPECT_GE(fused.groups, 2U) << fused.text;
}

TEST(Fuse, NormsAndResiduals) {
  torch::manual_seed(1);
  const auto x = torch::randn({4, 6, 40}), y = torch::randn({4, 6, 40});
  const auto w = torch::rand({40}, torch::requires_grad()), b = torch::rand({40}, torch::requires_grad());
  auto input = torch::randn({4, 6, 40}, torch::requires_grad());
  const auto fused = expect_as_eager(
      [&] {
        const auto h = torch::layer_norm(input * 2 + y, {40}, w, b);
        const auto rms = (h * torch::rsqrt(h.pow(2).mean(-1, true) + 1e-6)) * w;
        return torch::autograd::grad({(rms * x).sum()}, {input, w, b});
      },
      1e-4);
  EXPECT_GE(fused.groups, 2U) << fused.text;
}

TEST(Fuse, SoftmaxMaskedByHand) {
  torch::manual_seed(2);
  const auto scores = torch::randn({2, 3, 8, 8}, torch::requires_grad());
  const auto mask = torch::tril(torch::ones({8, 8})).view({1, 1, 8, 8});
  const auto grad = torch::randn({2, 3, 8, 8});
  expect_as_eager([&] {
    const auto att = torch::softmax((scores * 0.125).masked_fill(mask == 0, -INFINITY), -1);
    auto all = torch::autograd::grad({(att * grad).sum()}, {scores});
    all.push_back(att);
    return all;
  });
}

TEST(Fuse, ViewsBroadcastsAndConcatenation) {
  torch::manual_seed(3);
  const auto x = torch::randn({2, 4, 6, 8}), c = torch::randn({6, 8}), s = torch::randn({6, 8});
  expect_as_eager([&] {
    const auto half = x.chunk(2, -1);
    const auto turned = x * c + torch::cat({-half[1], half[0]}, -1) * s;
    return Results{turned, turned.transpose(1, 2).contiguous() * 2 + 1, x.slice(1, 1, 3).relu() + x.slice(1, 0, 2)};
  });
}

TEST(Fuse, InPlaceOperatorsAndViewsOfWhatTheyWrite) {
  torch::manual_seed(4);
  const auto x = torch::randn({5, 12});
  expect_as_eager(
      [&] {
        auto a = x * 2;
        auto left = a.slice(1, 0, 6);
        left.add_(1).mul_(3);
        auto b = a.exp() + left.sum();
        a.mul_(0.5);
        b.add_(a);
        return Results{a, b, a.t().contiguous() + 1};
      },
      1e-4);
}

TEST(Fuse, DtypesAndComparisons) {
  torch::manual_seed(5);
  const auto x = torch::randn({7, 9}), n = torch::randint(-5, 5, {7, 9}), h = x.to(torch::kBFloat16),
             d = x.to(torch::kDouble);
  expect_as_eager([&] {
    const auto positive = (x > 0).logical_and(n != 2);
    return Results{positive,
                   torch::where(positive, n, n * 2 - 1),
                   torch::floor_divide(n, 3) + torch::remainder(n, 4),
                   (n / 2.5).to(torch::kInt),
                   d * 3 - d.abs().sqrt(),
                   (x + n).clamp(-1, 2)};
  });
  expect_as_eager([&] { return Results{(h * 2 + x).to(torch::kBFloat16), h.tanh() * h.sigmoid()}; }, 2e-2);
}

TEST(Fuse, NanAndInfinity) {
  auto x = torch::randn({64});
  x[3] = NAN, x[5] = INFINITY, x[7] = -INFINITY;
  const auto y = x.flip(0).contiguous();
  expect_as_eager([&] {
    return Results{torch::maximum(x, y).relu() + 1, (x.clamp(-1, 1) * 2).tanh(), torch::isnan(x + y).logical_not(),
                   (x - y).exp().log1p(), torch::softmax(x.view({8, 8}), 1) * 2};
  });
}

TEST(Fuse, ScalarsAndEmptyTensors) {
  const auto x = torch::randn({}), e = torch::randn({0, 4}), y = torch::randn({3, 4});
  expect_as_eager([&] { return Results{(x * 2 + 1).exp(), e * 2 + 1, y * x + x.tanh(), (y * 2).sum() * 3 + x}; });
}

TEST(Fuse, LossesAndTheirGradients) {
  torch::manual_seed(6);
  const auto logits = torch::randn({12, 20}, torch::requires_grad()), other = torch::randn({12, 20});
  const auto target = torch::randint(0, 20, {12});
  expect_as_eager([&] {
    const auto loss = torch::nn::functional::cross_entropy(logits * 2, target) + torch::mse_loss(logits, other) * 0.5;
    auto all = torch::autograd::grad({loss}, {logits});
    all.push_back(loss.detach());
    return all;
  });
}

TEST(Fuse, WhatUsersWriteBetweenIsSeenByReadersInOrder) {
  torch::manual_seed(7);
  auto state = torch::randn({16});
  const auto start = state.clone();
  Results results;
  auto step = [&] {
    auto before = state * 2 + 1;
    state.mul_(0.5).add_(1);
    return Results{before, state.exp() * before};
  };
  auto traced = trace([&] { results = step(); });
  ASSERT_TRUE(traced.reason.empty()) << traced.reason;
  const auto after = state.clone(), first = results[0].clone(), second = results[1].clone();
  fuse(traced.graph);
  Program program(std::move(traced.graph));
  state.copy_(start);
  program.run();
  EXPECT_TRUE(torch::allclose(state, after));
  EXPECT_TRUE(torch::allclose(results[0], first));
  EXPECT_TRUE(torch::allclose(results[1], second));
}

}  // namespace
}  // namespace levin::compile
