// Precision "fp8-mixed" in a run, emulated on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"

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

/// A decoder that learns, and its checkpoints.
struct Fp8Run {
  explicit Fp8Run(int64_t seed, const std::string& precision = "fp8-mixed", StrategyChoice strategy = "auto")
      : fabric({.accelerator = "cpu", .strategy = std::move(strategy), .devices = 1, .precision = precision}) {
    fabric.launch();
    torch::manual_seed(seed);
    model = models::Decoder(models::DecoderOptions{
        .vocab_size = 32, .max_positions = 16, .num_layers = 2, .num_heads = 2, .hidden_dim = 32});
    auto both = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 3e-3}));
    net.emplace(std::get<0>(both));
    optimizer = std::get<1>(both);
  }
  /// Losses of the next steps; the data of a step depend on its number alone.
  std::vector<double> train(int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i, ++step) {
      torch::manual_seed(100 + step);
      const auto tokens = (torch::randint(0, 32, {8, 1}) + torch::arange(16)).remainder(32);
      const auto loss = (*net)(tokens, models::next_tokens(tokens));
      fabric.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }
  double evaluate() {
    const torch::NoGradGuard no_grad;
    const auto tokens = torch::arange(16).expand({4, 16}).contiguous();
    return (*net)(tokens, models::next_tokens(tokens)).item<double>();
  }
  /// As if the numbers had been larger before, so that the scales are not those of the tensors at hand.
  void enlarge_histories() {
    auto fp8 = fabric.fp8_state();
    auto state = fp8.state_dict();
    auto module = state.at("module_0").to_dict();
    const auto histories = module.at("histories").to_tensor().clone();
    histories.slice(3, 0, -1).mul_(4096);
    module["histories"] = histories;
    state["module_0"] = module;
    fp8.load_state_dict(state);
  }
  State state() { return {{"model", model}, {"optimizer", optimizer}, {"step", step}}; }

  Fabric fabric;
  models::Decoder model = nullptr;
  std::optional<FabricModule<models::Decoder>> net;
  Optimizer optimizer;
  int64_t step = 0;
};

class Fp8Checkpoint : public testing::FolderTest {};

TEST_F(Fp8Checkpoint, ResumesToTheBit) {
  for (const int before : {1, 5}) {
    const auto path = (folder_ / std::to_string(before)).string();
    Fp8Run whole(0);
    whole.train(before);
    whole.enlarge_histories();
    whole.fabric.save(path, whole.state());
    const auto evaluated = whole.evaluate();
    const auto wanted = whole.train(5);

    Fp8Run resumed(1);
    resumed.train(2);  // histories of its own, which must go
    EXPECT_TRUE(resumed.fabric.load(path, resumed.state()).empty());
    EXPECT_EQ(resumed.step, before);
    EXPECT_EQ(resumed.evaluate(), evaluated);
    EXPECT_EQ(resumed.train(5), wanted) << before;
    EXPECT_TRUE(torch::equal(whole.net->setup_call().fp8->state(), resumed.net->setup_call().fp8->state()));
  }
  // Without the histories it is another run.
  Fp8Run whole(1), bare(1);
  const auto path = (folder_ / "5").string();
  whole.fabric.load(path, whole.state());
  load_checkpoint(path, bare.state());
  EXPECT_NE(bare.train(5), whole.train(5));
}

TEST_F(Fp8Checkpoint, GoesFromOnePrecisionToAnother) {
  const auto path = (folder_ / "eight").string(), narrow = (folder_ / "sixteen").string();
  Fp8Run eight(0), sixteen(0, "bf16-mixed");
  eight.train(2), sixteen.train(2);
  eight.fabric.save(path, eight.state());
  sixteen.fabric.save(narrow, sixteen.state());
  EXPECT_EQ(checkpoint_info(narrow).keys, (std::vector<std::string>{"model", "optimizer", "step"}));

  Fp8Run from_sixteen(1), from_eight(1, "bf16-mixed");
  EXPECT_TRUE(from_sixteen.fabric.load(narrow, from_sixteen.state()).empty());
  EXPECT_TRUE(from_eight.fabric.load(path, from_eight.state()).contains("fp8_histories"));
  for (auto* run : {&from_sixteen, &from_eight}) EXPECT_LT(run->train(20).back(), 3.5);
}

TEST_F(Fp8Checkpoint, IsKeptWhereParametersAreSharded) {
  const auto path = (folder_ / "shards").string();
  const FsdpOptions sharded{.state_dict_type = "sharded"};
  Fp8Run whole(0, "fp8-mixed", sharded);
  whole.train(3);
  whole.fabric.save(path, whole.state());
  const auto wanted = whole.train(3);
  Fp8Run resumed(1, "fp8-mixed", sharded);
  resumed.fabric.load(path, resumed.state());
  EXPECT_EQ(resumed.train(3), wanted);
}

TEST_F(Fp8Checkpoint, OtherNumbersOfRanksTakeTheLargest) {
  Fp8Run run(0);
  run.train(3);
  auto fp8 = run.fabric.fp8_state();
  ASSERT_FALSE(fp8.empty());
  auto state = fp8.state_dict();
  auto module = state.at("module_0").to_dict();
  const auto here = module.at("histories").to_tensor();
  ASSERT_EQ(here.dim(), 4);
  auto larger = here.clone();
  larger.slice(3, 0, -1).mul_(2);
  module["histories"] = at::cat({here, larger, here});
  state["module_0"] = module;
  fp8.load_state_dict(state);
  EXPECT_TRUE(
      torch::equal(run.fabric.fp8_state().state_dict().at("module_0").to_dict().at("histories").to_tensor(), larger));
  EXPECT_TRUE(Fp8Run(0, "bf16-mixed").fabric.fp8_state().empty());
}

}  // namespace
}  // namespace levin
