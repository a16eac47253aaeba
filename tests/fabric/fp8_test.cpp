// Precision "fp8-mixed" in a run, emulated on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

using ::testing::HasSubstr;

/// Losses of a small decoder that learns sequences which count up.
std::vector<double> fp8_curve(const std::string& precision, Plugins plugins = {}, int steps = 60) {
  Fabric fabric({.accelerator = "cpu", .devices = 1, .precision = precision, .plugins = plugins});
  fabric.launch();
  torch::manual_seed(0);
  auto model = models::Decoder(
      models::DecoderOptions{.vocab_size = 32, .max_positions = 16, .num_layers = 2, .num_heads = 2, .hidden_dim = 32});
  auto [net, optimizer] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 3e-3}));
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const auto tokens = (torch::randint(0, 32, {8, 1}) + torch::arange(16)).remainder(32);
    const auto loss = net(tokens, models::next_tokens(tokens));
    fabric.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(Fp8Mixed, IsKnown) {
  const auto plan = resolve_precision("fp8-mixed", at::kCUDA);
  EXPECT_EQ(plan.autocast, at::kBFloat16);
  EXPECT_TRUE(plan.fp8.has_value());
  EXPECT_FALSE(plan.scales_loss);
  EXPECT_FALSE(resolve_precision("bf16-mixed", at::kCUDA).fp8.has_value());
  EXPECT_THAT(testing::error_of([] { resolve_precision("fp8", at::kCUDA); }), HasSubstr("did you mean \"fp8-mixed\""));
}

TEST(Fp8Mixed, TheCpuSaysThatItEmulates) {
  // The line is given once in a process.
  const auto first = testing::captured_stderr([] { resolve_precision("fp8-mixed", at::kCPU); });
  const auto second = testing::captured_stderr([] { resolve_precision("fp8-mixed", at::kCPU); });
  EXPECT_TRUE(first.empty() || first.find("precision \"fp8-mixed\" is emulated") != std::string::npos) << first;
  EXPECT_EQ(second, "");
}

TEST(Fp8Mixed, LearnsAsInBfloat16) {
  const auto narrow = fp8_curve("bf16-mixed");
  ASSERT_LT(narrow.back(), 0.5 * narrow.front());
  for (const auto recipe : {kernels::Fp8Recipe::kDelayed, kernels::Fp8Recipe::kCurrent, kernels::Fp8Recipe::kRow}) {
    Plugins plugins;
    plugins.fp8.recipe = recipe;
    const auto losses = fp8_curve("fp8-mixed", plugins);
    EXPECT_NE(losses, narrow);
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], narrow[i], 0.01 * narrow.front())
          << "step " << i << " recipe " << static_cast<int>(recipe);
  }
}

TEST(Fp8Mixed, TakesItsOptionsFromThePlugins) {
  Plugins plugins;
  plugins.fp8 = {.recipe = kernels::Fp8Recipe::kRow, .margin = 1};
  EXPECT_EQ(resolve({.accelerator = "cpu", .precision = "fp8-mixed", .plugins = plugins}, 0).precision.fp8,
            plugins.fp8);
  EXPECT_FALSE(resolve({.accelerator = "cpu", .precision = "bf16-mixed", .plugins = plugins}, 0).precision.fp8);
}

TEST(Fp8Mixed, KnowsTheLayersOfADecoder) {
  Fabric fabric({.accelerator = "cpu", .devices = 1, .precision = "fp8-mixed"});
  fabric.launch();
  auto model = models::Decoder(models::DecoderOptions{
      .vocab_size = 32, .max_positions = 16, .num_layers = 2, .num_heads = 2, .hidden_dim = 32, .tied_head = false});
  auto net = fabric.setup(model);
  const auto& names = net.setup_call().fp8->names();
  const auto linears = std::count_if(names.begin(), names.end(), [](const std::string& name) {
    return name.find("attention") != std::string::npos || name.find("mlp") != std::string::npos;
  });
  EXPECT_EQ(linears, 8);
  EXPECT_EQ(std::count(names.begin(), names.end(), "head.weight"), 0);
  EXPECT_EQ(std::count(names.begin(), names.end(), "tokens.weight"), 0);
}

TEST(Fp8Mixed, SaysWhenNoLayerCan) {
  Fabric fabric({.accelerator = "cpu", .devices = 1, .precision = "fp8-mixed"});
  fabric.launch();
  torch::nn::Linear model(32, 32);
  auto net = fabric.setup(model);
  const auto text = testing::captured_stderr([&] {
    for (int i = 0; i < 3; ++i) net(torch::ones({16, 32}));
  });
  EXPECT_THAT(text, HasSubstr("no layer multiplied in float8"));
}

}  // namespace
}  // namespace levin
