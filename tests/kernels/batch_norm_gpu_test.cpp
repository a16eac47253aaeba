// batch_norm_act on the GPU against torch's operators in double. Skipped where there is none.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/dispatch.h"
#include "levin/kernels/norm/batch_norm.h"
#include "levin/testing/gpu.h"

namespace levin::kernels {
namespace {

class BatchNormActOnCuda : public levin::testing::GpuTest {};

struct Case {
  at::ScalarType dtype = at::kFloat;
  /// Of weights and statistics; none: that of x.
  std::optional<at::ScalarType> numbers = at::kFloat;
  std::vector<int64_t> sizes;
  bool residual = false, relu = false, training = true;
};

std::string text(const Case& c) {
  std::ostringstream out;
  out << c.dtype << " [" << at::IntArrayRef(c.sizes) << "] residual " << c.residual << " relu " << c.relu
      << " training " << c.training;
  return out.str();
}

Tensor laid_out(const Tensor& x) {
  return x.dim() == 4 ? x.contiguous(at::MemoryFormat::ChannelsLast) : x.contiguous();
}

struct Inputs {
  Tensor x, residual, weight, bias, mean, var;

  static Inputs random(const Case& c) {
    const auto options = torch::dtype(at::kFloat).device(at::kCUDA);
    const auto channels = c.sizes[1];
    const auto numbers = c.numbers.value_or(c.dtype);
    Inputs in;
    in.x = laid_out((torch::randn(c.sizes, options) * 2 + 1).to(c.dtype));
    if (c.residual) in.residual = laid_out(torch::randn(c.sizes, options).to(c.dtype));
    in.weight = (torch::rand({channels}, options) + 0.5).to(numbers);
    in.bias = torch::randn({channels}, options).to(numbers);
    in.mean = torch::randn({channels}, options).to(numbers);
    in.var = (torch::rand({channels}, options) + 0.5).to(numbers);
    return in.leaves();
  }
  Inputs leaves() const {
    Inputs in = *this;
    for (auto* each : {&in.x, &in.residual, &in.weight, &in.bias})
      if (each->defined()) *each = each->detach().requires_grad_();
    return in;
  }
  Inputs doubled() const {
    Inputs in;
    const auto twice = [](const Tensor& t) { return t.defined() ? t.detach().to(at::kDouble).clone() : t; };
    in.x = twice(x), in.residual = twice(residual), in.weight = twice(weight), in.bias = twice(bias);
    in.mean = twice(mean), in.var = twice(var);
    return in.leaves();
  }
  std::vector<Tensor> wanted() const {
    std::vector<Tensor> all{x, weight, bias};
    if (residual.defined()) all.push_back(residual);
    return all;
  }
};

Tensor fused(const Inputs& in, const Case& c, double momentum = 0.2) {
  return batch_norm_act(in.x, in.residual, in.weight, in.bias, in.mean, in.var, c.training, momentum, 1e-5, c.relu);
}

Tensor plain(const Inputs& in, const Case& c, double momentum = 0.2) {
  auto y = torch::batch_norm(in.x, in.weight, in.bias, in.mean, in.var, c.training, momentum, 1e-5, false);
  if (in.residual.defined()) y = y + in.residual;
  return c.relu ? y.relu() : y;
}

bool is_fused(const Tensor& y) {
  return y.grad_fn() && y.grad_fn()->name().find("BatchNormAct") != std::string::npos;
}

double apart(const Tensor& found, const Tensor& expected) {
  const auto a = found.detach().to(at::kDouble), b = expected.detach().to(at::kDouble);
  return ((a - b).norm() / (b.norm() + 1e-12)).item<double>();
}

/// Of the norm of a result: what rounding to the dtype costs.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-11 : dtype == at::kFloat ? 2e-5 : dtype == at::kHalf ? 1e-3 : 6e-3;
}

void expect_equal_to_double(const Case& c) {
  torch::manual_seed(7);
  const auto mine = Inputs::random(c), theirs = mine.doubled();
  const auto found = fused(mine, c), expected = plain(theirs, c);
  EXPECT_TRUE(is_fused(found)) << text(c);
  EXPECT_EQ(found.scalar_type(), c.dtype);
  EXPECT_EQ(found.strides(), mine.x.strides());
  const auto most = tolerance(c.dtype), of_numbers = tolerance(mine.weight.scalar_type());
  EXPECT_LT(apart(found, expected), most) << text(c);
  EXPECT_LT(apart(mine.mean, theirs.mean), of_numbers) << text(c);
  EXPECT_LT(apart(mine.var, theirs.var), of_numbers) << text(c);
  const auto grad = torch::randn_like(found);
  const auto a = torch::autograd::grad({found}, mine.wanted(), {grad});
  const auto b = torch::autograd::grad({expected}, theirs.wanted(), {grad.to(at::kDouble)});
  // Few rows leave little of a gradient: dy minus what goes through mean and variance cancels.
  const int64_t rows = mine.x.numel() / mine.x.size(1);
  // Where the sum is nearly zero, rounding decides whether ReLU passes it: a few of millions of numbers.
  const double passes = c.relu && c.dtype != at::kDouble ? 3e-3 : 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].scalar_type(), mine.wanted()[i].scalar_type());
    EXPECT_LT(apart(a[i], b[i]), std::max(passes, 3 * std::max(most, of_numbers) * (rows < 10 ? 10 : 1)))
        << text(c) << " gradient " << i;
  }
}

TEST_F(BatchNormActOnCuda, AgreesWithTorchInDouble) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (const int64_t channels : {3, 16, 24, 64, 100, 256, 1032, 2048})
      for (const auto& [batch, side] : std::vector<std::pair<int64_t, int64_t>>{{7, 1}, {64, 7}, {10, 100}}) {
        if (channels * batch * side * side > 30'000'000) continue;
        for (const bool residual : {false, true})
          for (const bool relu : {false, true})
            for (const bool training : {true, false})
              expect_equal_to_double({dtype,
                                      dtype == at::kDouble ? at::kDouble : at::kFloat,
                                      {batch, channels, side, side},
                                      residual,
                                      relu,
                                      training});
      }
}

TEST_F(BatchNormActOnCuda, TakesMatricesAndNumbersOfItsOwnDtype) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (const bool training : {true, false}) {
      expect_equal_to_double({dtype, std::nullopt, {513, 72}, true, true, training});
      expect_equal_to_double({dtype, std::nullopt, {33, 7, 3, 5}, false, true, training});
    }
}

TEST_F(BatchNormActOnCuda, CountsTheBatchesOfTraining) {
  for (const bool training : {true, false})
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{64, 2048, 7, 7}, {513, 3}}) {
      const Case c{at::kBFloat16, at::kFloat, sizes, true, true, training};
      const auto in = Inputs::random(c);
      const auto batches = torch::full({}, 5, torch::dtype(at::kLong).device(at::kCUDA));
      for (int i = 0; i < 3; ++i)
        batch_norm_act(in.x, in.residual, in.weight, in.bias, in.mean, in.var, training, 0.1, 1e-5, true, batches);
      EXPECT_EQ(batches.item<int64_t>(), training ? 8 : 5) << text(c);
    }
}

TEST_F(BatchNormActOnCuda, OneRowIsEvaluated) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    expect_equal_to_double({dtype, at::kFloat, {1, 64, 1, 1}, true, true, false});
}

TEST_F(BatchNormActOnCuda, TakesWhatDoesNotStandAtVectors) {
  const Case c{at::kBFloat16, at::kFloat, {65, 64}, false, true};
  auto mine = Inputs::random(c);
  const auto flat = torch::randn({65 * 64 + 1}, torch::dtype(at::kBFloat16).device(at::kCUDA));
  mine.x = flat.narrow(0, 1, 65 * 64).view({65, 64}).detach().requires_grad_();
  const auto theirs = mine.doubled();
  const auto found = fused(mine, c), expected = plain(theirs, c);
  EXPECT_TRUE(is_fused(found));
  EXPECT_LT(apart(found, expected), tolerance(c.dtype));
  const auto grad = torch::randn_like(found);
  EXPECT_LT(apart(torch::autograd::grad({found}, {mine.x}, {grad})[0],
                  torch::autograd::grad({expected}, {theirs.x}, {grad.to(at::kDouble)})[0]),
            3 * tolerance(c.dtype));
}

/// The bits of the ReLU are those of forward's vectors.
TEST_F(BatchNormActOnCuda, TakesGradientsThatDoNotStandAtVectors) {
  for (const bool residual : {true, false})
    for (const bool training : {true, false}) {
      const Case c{at::kBFloat16, at::kFloat, {65, 64}, residual, true, training};
      const auto in = Inputs::random(c);
      const auto y = fused(in, c);
      const auto flat = torch::randn({65 * 64 + 1}, torch::dtype(at::kBFloat16).device(at::kCUDA));
      const auto grad = flat.narrow(0, 1, 65 * 64).view({65, 64});
      const auto a = torch::autograd::grad({y}, in.wanted(), {grad}, true);
      const auto b = torch::autograd::grad({y}, in.wanted(), {grad.clone()});
      for (size_t i = 0; i < a.size(); ++i) EXPECT_LT(apart(a[i], b[i]), 1e-2) << text(c) << " gradient " << i;
    }
}

/// What is no number passes the ReLU, forward and backward, as torch's does.
TEST_F(BatchNormActOnCuda, WhatIsNoNumberStaysOne) {
  for (const bool residual : {true, false}) {
    const Case c{at::kFloat, at::kFloat, {64, 16}, residual, true, false};
    auto mine = Inputs::random(c);
    mine.x = mine.x.detach();
    mine.x[3][5] = NAN;
    mine.x.requires_grad_();
    const auto theirs = mine.doubled();
    const auto found = fused(mine, c), expected = plain(theirs, c);
    EXPECT_TRUE(torch::equal(found.isnan(), expected.isnan()));
    const auto a = torch::autograd::grad({found}, {mine.x}, {torch::ones_like(found)})[0];
    const auto b = torch::autograd::grad({expected}, {theirs.x}, {torch::ones_like(expected)})[0];
    EXPECT_TRUE(a.to(at::kDouble).allclose(b, 1e-4, 1e-4));
  }
}

TEST_F(BatchNormActOnCuda, KeepsSmallVariancesBesideLargeMeans) {
  const Case c{at::kFloat, at::kFloat, {64, 64, 28, 28}};
  auto mine = Inputs::random(c);
  mine.x = laid_out(torch::randn(c.sizes, at::kCUDA) * 0.1 + 1000).requires_grad_();
  const auto theirs = mine.doubled();
  EXPECT_LT(apart(fused(mine, c, 1.0), plain(theirs, c, 1.0)), 1e-3);
  EXPECT_LT(apart(mine.var, theirs.var), 1e-5);
}

/// Of a channel whose first pixel stands out.
TEST_F(BatchNormActOnCuda, KeepsSmallVariancesBesideOneLargeNumber) {
  const Case c{at::kFloat, at::kFloat, {64, 64, 28, 28}};
  auto mine = Inputs::random(c);
  mine.x = laid_out(torch::randn(c.sizes, at::kCUDA) * 0.01);
  mine.x.select(0, 0).select(1, 0).select(1, 0).fill_(3);
  mine.x.requires_grad_();
  const auto theirs = mine.doubled();
  fused(mine, c, 1.0), plain(theirs, c, 1.0);
  EXPECT_LT(apart(mine.var, theirs.var), 1e-5);
}

void expect_repeats(const Case& c) {
  const auto first = Inputs::random(c);
  auto second = first.leaves();
  second.mean = first.mean.clone(), second.var = first.var.clone();
  const auto a = fused(first, c), b = fused(second, c);
  EXPECT_TRUE(torch::equal(a, b));
  EXPECT_TRUE(torch::equal(first.var, second.var));
  const auto grad = torch::randn_like(a);
  const auto da = torch::autograd::grad({a}, first.wanted(), {grad});
  const auto db = torch::autograd::grad({b}, second.wanted(), {grad});
  for (size_t i = 0; i < da.size(); ++i) EXPECT_TRUE(torch::equal(da[i], db[i])) << text(c) << " gradient " << i;
}

TEST_F(BatchNormActOnCuda, RepeatsBitByBit) {
  expect_repeats({at::kBFloat16, at::kFloat, {64, 64, 56, 56}, true, true});
  expect_repeats({at::kBFloat16, at::kFloat, {64, 2048, 7, 7}, false, true});
  expect_repeats({at::kFloat, at::kFloat, {16, 100, 14, 14}, true, true});
}

TEST_F(BatchNormActOnCuda, TakesGradientsOfAnyLayout) {
  const Case c{at::kFloat, at::kFloat, {8, 64, 7, 7}, true, true};
  const auto in = Inputs::random(c);
  const auto y = fused(in, c);
  const auto grad = torch::randn(c.sizes, at::kCUDA);
  const auto a = torch::autograd::grad({y}, in.wanted(), {grad}, true);
  const auto b = torch::autograd::grad({y}, in.wanted(), {laid_out(grad)}, true);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
  const auto wide = torch::ones({8, 64, 1, 1}, at::kCUDA).expand(c.sizes);
  const auto d = torch::autograd::grad({y}, in.wanted(), {wide}, true);
  const auto e = torch::autograd::grad({y}, in.wanted(), {laid_out(wide)});
  for (size_t i = 0; i < d.size(); ++i) EXPECT_TRUE(torch::equal(d[i], e[i])) << i;
}

/// Frozen layers: fewer gradients are asked for, and the others stay right.
TEST_F(BatchNormActOnCuda, GivesOnlyTheGradientsThatAreAskedFor) {
  for (const bool training : {true, false})
    for (const bool relu : {true, false}) {
      const Case c{at::kFloat, at::kFloat, {8, 64, 7, 7}, true, relu, training};
      auto mine = Inputs::random(c);
      const auto all = torch::autograd::grad({fused(mine, c).pow(2).sum()}, mine.wanted());
      for (auto* each : {&mine.weight, &mine.bias}) *each = each->detach();
      const auto two = torch::autograd::grad({fused(mine, c).pow(2).sum()}, {mine.x, mine.residual});
      EXPECT_TRUE(torch::equal(two[0], all[0]));
      EXPECT_TRUE(torch::equal(two[1], all[3]));
      mine.x = mine.x.detach();
      const auto weights = mine.leaves();
      const auto last = torch::autograd::grad(
          {fused({mine.x, mine.residual.detach(), weights.weight, weights.bias, mine.mean, mine.var}, c).pow(2).sum()},
          {weights.weight, weights.bias});
      EXPECT_TRUE(torch::equal(last[0], all[1]));
      EXPECT_TRUE(torch::equal(last[1], all[2]));
      const auto one = torch::autograd::grad({fused(mine, c).pow(2).sum()}, {mine.residual});
      EXPECT_TRUE(torch::equal(one[0], all[3]));
    }
}

TEST_F(BatchNormActOnCuda, CanBeDifferentiatedTwice) {
  for (const bool training : {true, false})
    for (const bool residual : {true, false}) {
      const Case c{at::kDouble, at::kDouble, {4, 6, 3, 3}, residual, true, training};
      const auto mine = Inputs::random(c), theirs = mine.doubled();
      const auto second = [](const Tensor& y, const Inputs& in) {
        const auto first = torch::autograd::grad({y.pow(2).sum()}, {in.x, in.weight}, {}, true, true);
        return torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum()}, {in.x, in.weight});
      };
      const auto a = second(fused(mine, c), mine), b = second(plain(theirs, c), theirs);
      for (size_t i = 0; i < 2; ++i) EXPECT_LT(apart(a[i], b[i]), 1e-8) << i;
    }
}

TEST_F(BatchNormActOnCuda, OtherLayoutsAreTorchsOwn) {
  const Case c{at::kFloat, at::kFloat, {8, 64, 7, 7}, true, true};
  auto in = Inputs::random(c);
  in.x = in.x.detach().contiguous().requires_grad_();
  EXPECT_FALSE(is_fused(fused(in, c)));
  in.x = laid_out(torch::randn({8, 64, 7, 14}, at::kCUDA)).narrow(3, 0, 7).requires_grad_();
  const auto y = fused(in, c);
  EXPECT_FALSE(is_fused(y));
  EXPECT_LT(apart(y, plain(in.doubled(), c)), 1e-5);
  // A residual of another layout is converted.
  in.x = laid_out(in.x.detach()).requires_grad_();
  in.residual = in.residual.detach().contiguous().requires_grad_();
  const auto z = fused(in, c);
  EXPECT_TRUE(is_fused(z));
  EXPECT_LT(apart(z, plain(in.doubled(), c)), 1e-5);
}

TEST_F(BatchNormActOnCuda, AnEmptyBatchIsTorchs) {
  const Case c{at::kFloat, at::kFloat, {0, 64, 7, 7}, false, true};
  const auto in = Inputs::random(c);
  const auto outcome = [](const auto& f) -> std::string {
    try {
      return c10::str(f().sizes());
    } catch (const c10::Error&) {
      return "error";
    }
  };
  EXPECT_EQ(outcome([&] { return fused(in, c); }), outcome([&] { return plain(in, c); }));
}

/// Synchronized batch norm takes `aten::batch_norm` while its scope lives.
TEST_F(BatchNormActOnCuda, ScopesThatTakeBatchNormGetTheCall) {
  const Case c{at::kFloat, at::kFloat, {8, 64, 7, 7}, true, true};
  const auto in = Inputs::random(c);
  levin::detail::let_others_pass(levin::detail::kLowerKey);
  EXPECT_TRUE(is_fused(fused(in, c)));
  const c10::impl::IncludeDispatchKeyGuard scope(levin::detail::kLowerKey);
  EXPECT_FALSE(is_fused(fused(in, c)));
}

}  // namespace
}  // namespace levin::kernels
