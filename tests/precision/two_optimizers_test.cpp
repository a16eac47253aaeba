// A loss scaler that is updated after the step of each optimizer, as Fabric does.
#include <gtest/gtest.h>

#include "levin/optim/optim.h"
#include "levin/precision/precision.h"

namespace levin {
namespace {

struct Pair {
  Tensor a = torch::linspace(-1, 1, 6).requires_grad_(), b = torch::linspace(1, 3, 4).requires_grad_();
  Optimizer of_a = optim::SGD({a}, {.lr = 0.1}), of_b = optim::SGD({b}, {.lr = 0.05});

  Tensor loss() const { return (a * a).sum() + (b * b).sum() + a.sum() * b.sum(); }
  void zero_grad() {
    of_a.zero_grad();
    of_b.zero_grad();
  }
};

void step(GradScaler& scaler, Optimizer& optimizer) {
  scaler.step(optimizer);
  scaler.update();
}

/// Scales are powers of two: nothing is rounded.
void expect_equal_to_unscaled(const GradScalerOptions& options, bool unscale) {
  Pair plain, scaled;
  GradScaler scaler(options);
  for (int i = 0; i < 6; ++i) {
    plain.zero_grad();
    plain.loss().backward();
    plain.of_a.step();
    plain.of_b.step();
    scaled.zero_grad();
    scaler.scale(scaled.loss()).backward();
    if (unscale) {
      scaler.unscale(scaled.of_a);
      scaler.unscale(scaled.of_b);
    }
    step(scaler, scaled.of_a);
    step(scaler, scaled.of_b);
    EXPECT_TRUE(torch::equal(plain.a, scaled.a)) << i;
    EXPECT_TRUE(torch::equal(plain.b, scaled.b)) << i;
  }
}

TEST(TwoOptimizers, GradientsThatWereUnscaledAreNotUnscaledAgain) {
  expect_equal_to_unscaled({.init_scale = 1024}, true);
}

TEST(TwoOptimizers, AScaleThatGrewIsNotThatOfTheGradients) {
  expect_equal_to_unscaled({.init_scale = 4, .growth_interval = 1}, false);
  expect_equal_to_unscaled({.init_scale = 4, .growth_interval = 3}, true);
}

TEST(TwoOptimizers, CountAsOneStep) {
  Pair both;
  GradScaler scaler({.init_scale = 64, .growth_interval = 3});
  for (int i = 0; i < 3; ++i) {
    both.zero_grad();
    scaler.scale(both.loss()).backward();
    step(scaler, both.of_a);
    EXPECT_EQ(scaler.current_scale(), i == 2 ? 128 : 64);
    step(scaler, both.of_b);
    EXPECT_EQ(scaler.state_dict().at("_growth_tracker").to_int(), (i + 1) % 3);
  }
  EXPECT_EQ(scaler.current_scale(), 128);
}

TEST(TwoOptimizers, AnOverflowOfEitherHalvesTheScaleOnce) {
  for (const auto& [in_a, in_b] : {std::pair(true, false), {false, true}, {true, true}}) {
    Pair both;
    const auto a = both.a.detach().clone(), b = both.b.detach().clone();
    GradScaler scaler({.init_scale = 64, .growth_interval = 1});
    scaler.scale(both.loss()).backward();
    const auto grad_b = both.b.grad() / 64;
    if (in_a) both.a.mutable_grad()[0] = INFINITY;
    if (in_b) both.b.mutable_grad()[0] = NAN;
    step(scaler, both.of_a);
    step(scaler, both.of_b);
    EXPECT_EQ(scaler.current_scale(), 32);
    EXPECT_EQ(scaler.state_dict().at("_growth_tracker").to_int(), 0);
    EXPECT_EQ(torch::equal(both.a, a), in_a);
    EXPECT_TRUE(torch::equal(both.b, in_b ? b : b - 0.05 * grad_b));
  }
}

TEST(TwoOptimizers, OneThatWasUnscaledAndDidNotStepIsUnscaledInTheNextStep) {
  Pair both;
  GradScaler scaler({.init_scale = 64});
  for (int i = 0; i < 2; ++i) {
    both.zero_grad();
    scaler.scale(both.loss()).backward();
    const auto expected = both.b.grad() / 64;
    scaler.unscale(both.of_b);
    EXPECT_TRUE(torch::equal(both.b.grad(), expected)) << i;
    step(scaler, both.of_a);
  }
}

TEST(TwoOptimizers, AStateThatIsLoadedStays) {
  Pair both;
  GradScaler scaler({.init_scale = 64});
  scaler.scale(both.loss()).backward();
  step(scaler, both.of_a);
  auto state = scaler.state_dict();
  state["scale"] = 8.0;
  state["_growth_tracker"] = int64_t{5};
  scaler.load_state_dict(state);
  step(scaler, both.of_b);
  EXPECT_EQ(scaler.current_scale(), 8);
  EXPECT_EQ(scaler.state_dict().at("_growth_tracker").to_int(), 6);
}

}  // namespace
}  // namespace levin
