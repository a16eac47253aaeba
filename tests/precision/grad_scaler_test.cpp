#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/optim/optim.h"
#include "levin/optim/torch/adapter.h"
#include "levin/precision/precision.h"
#include "levin/testing/paths.h"

namespace levin {
namespace {

nlohmann::json fixture() {
  std::ifstream file(levin::testing::source_dir() + "/tests/precision/fixtures/grad_scaler.json");
  return nlohmann::json::parse(file);
}

// The loop of make_fixtures.py. A state that is saved and loaded in the middle must change nothing.
void expect_equal_to_torch(const nlohmann::json& rows, Tensor w, Optimizer optimizer, bool unscale) {
  GradScaler scaler({.init_scale = 1024, .growth_interval = 3});
  for (int step = 0; step < 16; ++step) {
    optimizer.zero_grad();
    scaler.scale((w * w).sum() * (step + 1)).backward();
    if (step == 4 || step == 5 || step == 11) w.mutable_grad()[step % 6] = step == 5 ? NAN : INFINITY;
    if (unscale) scaler.unscale(optimizer);
    scaler.step(optimizer);
    scaler.update();
    EXPECT_EQ(scaler.current_scale(), rows[step]["scale"].get<double>()) << "step " << step;
    EXPECT_EQ(scaler.state_dict().at("_growth_tracker").to_int(), rows[step]["tracker"].get<int64_t>())
        << "step " << step;
    const auto expected = torch::tensor(rows[step]["w"].get<std::vector<float>>());
    EXPECT_LE((w.detach() - expected).abs().max().item<float>(), 2e-7) << "step " << step;
    if (step == 7) {
      GradScaler fresh;
      fresh.load_state_dict(scaler.state_dict());
      scaler = std::move(fresh);
    }
  }
}

Tensor parameter() {
  return torch::linspace(-1, 1, 6).requires_grad_();
}

TEST(GradScaler, SkipsAndGrowsAsTorchFused) {
  auto w = parameter();
  expect_equal_to_torch(fixture()["fused"], w, optim::AdamW({w}, {.lr = 0.1}), false);
}

TEST(GradScaler, SkipsAndGrowsAsTorchUnscaledFirst) {
  auto w = parameter();
  expect_equal_to_torch(fixture()["fused_unscaled"], w, optim::AdamW({w}, {.lr = 0.1}), true);
}

TEST(GradScaler, SkipsAndGrowsAsTorchWithAnOptimizerThatCannotBeTold) {
  auto w = parameter();
  torch::optim::AdamW plain({w}, torch::optim::AdamWOptions(0.1));
  expect_equal_to_torch(fixture()["plain"], w, optim::adapt(plain), false);
}

// As torch's SGD, whose first update takes the gradient undamped also when the scaler has skipped one before it.
TEST(GradScaler, ASkippedFirstStepIsStillToCome) {
  for (const bool unscale : {false, true}) {
    auto w = torch::ones({40}).requires_grad_(), same = torch::ones({40}).requires_grad_();
    optim::SGD damped({w}, {.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
    torch::optim::SGD plain({same}, torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.5));
    GradScaler scaler({.init_scale = 1024});
    for (int step = 0; step < 4; ++step) {
      damped.zero_grad();
      scaler.scale((w * w).sum()).backward();
      if (step == 0) w.mutable_grad()[3] = INFINITY;
      if (unscale) scaler.unscale(damped);
      scaler.step(damped);
      scaler.update();
      if (step == 0) continue;
      plain.zero_grad();
      (same * same).sum().backward();
      plain.step();
      EXPECT_LE((w.detach() - same.detach()).abs().max().item<float>(), 2e-6) << "step " << step;
    }
  }
}

TEST(GradScaler, SkipsAStepWithoutALossOnce) {
  GradScaler scaler;
  EXPECT_FALSE(scaler.take_skip());
  scaler.skip_step();
  EXPECT_TRUE(scaler.take_skip());
  EXPECT_FALSE(scaler.take_skip());
  scaler.skip_step();
  scaler.scale(torch::ones({}));
  EXPECT_FALSE(scaler.take_skip());
}

TEST(GradScaler, RefusesWrongOrder) {
  auto w = parameter();
  optim::AdamW optimizer({w}, {.lr = 0.1});
  GradScaler scaler;
  EXPECT_THROW(scaler.step(optimizer), Error);
  scaler.scale(w.sum()).backward();
  scaler.step(optimizer);
  EXPECT_THROW(scaler.step(optimizer), Error);
  EXPECT_THROW(scaler.unscale(optimizer), Error);
  scaler.update();
  EXPECT_NO_THROW(scaler.step(optimizer));
}

}  // namespace
}  // namespace levin
