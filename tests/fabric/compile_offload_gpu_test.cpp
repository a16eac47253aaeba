// Compiled steps whose parameters are in host memory and are stepped on the device, against the same steps run eagerly:
// bit by bit.
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/strategies/options.h"
#include "levin/testing/capture.h"
#include "levin/testing/gpu.h"

namespace levin::testing {
namespace {

struct Steps {
  StrategyChoice strategy;
  std::string precision = "bf16-true";
  double momentum = 0;
  int steps = 8;
  int accumulate = 1;
  /// Looks at the loss in the step: such a step cannot be captured.
  bool looks = false;
  /// Between two steps.
  std::function<void(int step, torch::nn::Module& model)> between = {};
  /// Lines are printed once: a test that reads one has a name of its own.
  std::string name = "step";
};

struct Seen {
  std::vector<float> losses;
  std::vector<Tensor> params;
  detail::StepCompiler::Counts counts;
  double peak = 0;
};

FsdpOptions offloaded() {
  const auto blocks = policy::by_class<models::EncoderBlock>();
  return {.auto_wrap_policy = blocks,
          .cpu_offload = true,
          .activation_checkpointing_policy = blocks,
          .optimizer_in_backward = true};
}

Seen train(const Steps& s, bool compile) {
  Seen seen;
  Fabric fabric({.accelerator = "cuda",
                 .strategy = s.strategy,
                 .devices = 1,
                 .precision = s.precision,
                 .compile = compile ? CompileMode("graph") : CompileMode()});
  fabric.launch();
  torch::manual_seed(0);
  auto model = models::vit({.image_size = 64,
                            .patch_size = 16,
                            .num_layers = 5,
                            .num_heads = 4,
                            .hidden_dim = 256,
                            .mlp_dim = 1024,
                            .dropout = 0.1,
                            .num_classes = 10});
  auto [net, optimizer] =
      fabric.setup(model, Optimizer(optim::SGD(model->parameters(), {.lr = 0.01, .momentum = s.momentum})));
  auto step = fabric.compile(
      [&, &net = net, &optimizer = optimizer](const Batch& batch, bool last) {
        const auto waits = fabric.no_backward_sync(net, !last);
        auto loss = cross_entropy(net(batch["image"]), batch["label"]);
        if (s.looks) (void)loss.item<float>();
        fabric.backward(loss);
        if (!last) return loss;
        optimizer.step();
        optimizer.zero_grad();
        return loss;
      },
      {.name = s.name});
  auto generator = at::detail::createCPUGenerator(8);
  for (int i = 0; i < s.steps * s.accumulate; ++i) {
    if (s.between) s.between(i, *model);
    optimizer.set_lr(0.01 / (1 + i));
    if (i == 5 * s.accumulate) fabric.accelerator().reset_peak_memory(fabric.device());
    // The last batch is smaller, and there is one more of full size after it.
    const int64_t rows = i == s.steps * s.accumulate - 2 ? 3 : 8;
    const Batch batch{{"image", fabric.to_device(at::randn({rows, 3, 64, 64}, generator, at::kFloat))},
                      {"label", fabric.to_device(at::randint(0, 10, {rows}, generator, at::kLong))}};
    seen.losses.push_back(step(batch, (i + 1) % s.accumulate == 0).template item<float>());
    // At once, without waiting for the device: what is on the host now is that of this step.
    for (const auto& param : model->parameters()) {
      EXPECT_TRUE(param.is_cpu());
      seen.params.push_back(param.detach().clone());
    }
  }
  seen.peak = static_cast<double>(fabric.accelerator().memory(fabric.device()).peak_allocated);
  if (step.compiler()) seen.counts = step.compiler()->counts();
  return seen;
}

/// The compiled one, and the eager one's peak.
std::pair<Seen, double> expect_same(const Steps& steps) {
  const auto eager = train(steps, false);
  auto compiled = train(steps, true);
  EXPECT_EQ(eager.losses, compiled.losses);
  EXPECT_EQ(eager.params.size(), compiled.params.size());
  for (size_t i = 0; i < eager.params.size(); ++i) EXPECT_TRUE(torch::equal(eager.params[i], compiled.params[i])) << i;
  const auto of_step = eager.params.size() / eager.losses.size();
  EXPECT_FALSE(torch::equal(eager.params.front(), eager.params[eager.params.size() - of_step])) << "nothing is trained";
  return {std::move(compiled), eager.peak};
}

class CompileOffloadGpu : public GpuTest {};

TEST_F(CompileOffloadGpu, EqualsEager) {
  ZeroOptions stage_3{.stage = 3, .auto_wrap_policy = policy::by_class<models::EncoderBlock>()};
  stage_3.offload_optimizer.device = stage_3.offload_param.device = "cpu";
  stage_3.optimizer_in_backward = true;
  auto kept = offloaded();
  kept.activation_checkpointing_policy.reset();
  for (const auto& [strategy, precision] : {std::pair<StrategyChoice, std::string>{offloaded(), "bf16-true"},
                                            {offloaded(), "32-true"},
                                            {kept, "bf16-true"},
                                            {stage_3, "bf16-true"}}) {
    const auto [compiled, eager_peak] = expect_same({.strategy = strategy, .precision = precision});
    EXPECT_EQ(compiled.counts.captured, 1);
    EXPECT_EQ(compiled.counts.replayed, 8 - 2 - 1);
    // (Products in float32 hold a workspace of cuBLAS for each stream.)
    EXPECT_LE(compiled.peak, eager_peak * 1.02 + (precision == "32-true" ? 1e8 : 0));
  }
}

TEST_F(CompileOffloadGpu, WhatIsChangedOnTheHostCounts) {
  const auto [compiled, eager_peak] = expect_same({.strategy = offloaded(), .between = [](int step, auto& model) {
                                                     const at::NoGradGuard no_grad;
                                                     auto params = model.parameters();
                                                     // In place, through data(), and by other memory.
                                                     if (step == 4) params.back().add_(0.25);
                                                     if (step == 5) params[params.size() / 2].data().mul_(0.5);
                                                     if (step == 6) params.back().set_data(params.back() * 2);
                                                   }});
  EXPECT_GE(compiled.counts.replayed, 2);
}

TEST_F(CompileOffloadGpu, AFailedCaptureLeavesTheShardsUsable) {
  const auto lines = captured_stderr([] {
    const auto [compiled, eager_peak] =
        expect_same({.strategy = offloaded(), .looks = true, .name = "step that looks"});
    EXPECT_EQ(compiled.counts.captured, 0);
  });
  EXPECT_NE(lines.find("[compile] step that looks runs eagerly"), std::string::npos) << lines;
}

TEST_F(CompileOffloadGpu, WhatTheHostDoesRunsEagerly) {
  const auto lines = captured_stderr([] {
    EXPECT_EQ(expect_same({.strategy = offloaded(), .momentum = 0.9, .name = "momentum"}).first.counts.captured, 0);
    EXPECT_EQ(expect_same({.strategy = offloaded(), .precision = "bf16-mixed", .name = "mixed"}).first.counts.captured,
              0);
    EXPECT_EQ(expect_same({.strategy = offloaded(), .accumulate = 2, .name = "parts"}).first.counts.captured, 0);
  });
  for (const char* line : {"[compile] momentum runs eagerly: fsdp has parameters in host memory whose optimizer has "
                           "state, or is not stepped in backward",
                           "[compile] mixed runs eagerly: fsdp has parameters in host memory that is not pinned, or of "
                           "another dtype",
                           "[compile] parts runs eagerly"})
    EXPECT_NE(lines.find(line), std::string::npos) << line << "\n" << lines;
}

}  // namespace
}  // namespace levin::testing
