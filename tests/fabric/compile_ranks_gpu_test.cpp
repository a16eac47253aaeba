// Compiled steps whose ranks communicate over NCCL, against the same steps run eagerly: bit by bit. NCCL wants a GPU
// for each rank, so on a machine with one GPU a rank communicates with itself.
#include <cmath>
#include <regex>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/levin.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"
#include "levin/testing/gpu.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/scoped_variable.h"

namespace levin {
namespace {

struct Training {
  StrategyChoice strategy = "ddp";
  std::string precision = "32-true";
  /// Micro-batches of a step, all but the last under no_backward_sync.
  int accumulate = 1;
  /// Said in advance, or found out.
  bool declared = true;
  double clip = 0.1;
  bool checkpoints = true;
  /// All micro-batches are reduced.
  bool always_syncs = false;
  int steps = 20;
  /// The batches of the last step are smaller.
  bool smaller_at_end = false;
  /// The gradients of this step overflow in 16 bit.
  int overflow_at = -1;
  /// Gradients are dropped before backward, and not after the optimizer's step.
  bool zeroes_first = false;
  std::function<Optimizer(const std::vector<Tensor>&)> optimizer = [](const auto& params) -> Optimizer {
    return optim::AdamW(params, {.lr = 1e-2});
  };
  std::function<void(const Tensor& loss)> look = {};
  /// Lines are printed once: a test that reads one has a name of its own.
  std::string name = "step";
};

struct Outcome {
  std::vector<float> losses;
  std::vector<Tensor> params;
  detail::StepCompiler::Counts counts;
  double scale = 0;
};

Outcome train(const Training& t, bool compile) {
  torch::manual_seed(3);
  Fabric fabric({.accelerator = "cuda",
                 .strategy = t.strategy,
                 .devices = 1,
                 .precision = t.precision,
                 .compile = compile ? CompileMode("graph") : CompileMode()});
  fabric.launch();
  auto model = models::vit({.image_size = 16,
                            .patch_size = 8,
                            .num_layers = 3,
                            .num_heads = 2,
                            .hidden_dim = 32,
                            .mlp_dim = 64,
                            .dropout = 0.1,
                            .num_classes = 10});
  if (t.checkpoints) checkpoint_activations(model, policy::repeated());
  auto [net, opt] = fabric.setup(model, t.optimizer(model->parameters()));
  auto step = fabric.compile(
      [&, &net = net, &opt = opt](Batch& batch, bool last) {
        Tensor loss;
        {
          if (t.zeroes_first) opt.zero_grad();
          const auto waits = fabric.no_backward_sync(net, !last && !t.always_syncs);
          loss = cross_entropy(net(batch["image"]), batch["label"]) * batch["factor"] / t.accumulate;
          if (t.look) t.look(loss);
          fabric.backward(loss);
        }
        if (!last) return loss;
        if (t.clip > 0) fabric.clip_gradients(opt, {.max_norm = t.clip, .error_if_nonfinite = t.overflow_at < 0});
        opt.step();
        if (!t.zeroes_first) opt.zero_grad();
        return loss;
      },
      {.name = t.name, .accumulates_gradients = t.accumulate > 1 && t.declared});
  Outcome outcome;
  std::vector<Tensor> losses;
  auto generator = at::detail::createCPUGenerator(8);
  for (int i = 0; i < t.steps * t.accumulate; ++i) {
    opt.set_lr(1e-2 / (1 + i));
    const int64_t rows = t.smaller_at_end && i / t.accumulate + 1 == t.steps ? 5 : 8;
    const float factor = i / t.accumulate == t.overflow_at ? 1e6f : 1.0f;
    Batch batch{{"image", fabric.to_device(at::randn({rows, 3, 16, 16}, generator, at::kFloat))},
                {"label", fabric.to_device(at::randint(0, 10, {rows}, generator, at::kLong))},
                {"factor", fabric.to_device(torch::full({}, factor))}};
    losses.push_back(step(batch, (i + 1) % t.accumulate == 0));
  }
  for (const auto& loss : losses) outcome.losses.push_back(loss.item<float>());
  for (const auto& p : model->parameters()) {
    outcome.params.push_back(p.detach().cpu());
    if (t.zeroes_first) outcome.params.push_back(p.grad().cpu());
  }
  if (step.compiler()) outcome.counts = step.compiler()->counts();
  if (fabric.grad_scaler()) outcome.scale = fabric.grad_scaler()->current_scale();
  return outcome;
}

/// The compiled one.
Outcome expect_same(const Training& training) {
  const auto eager = train(training, false);
  auto compiled = train(training, true);
  EXPECT_EQ(eager.losses, compiled.losses);
  EXPECT_EQ(eager.params.size(), compiled.params.size());
  for (size_t i = 0; i < eager.params.size(); ++i) EXPECT_TRUE(torch::equal(eager.params[i], compiled.params[i])) << i;
  EXPECT_TRUE(std::isfinite(compiled.losses.back()));
  EXPECT_EQ(eager.scale, compiled.scale);
  return compiled;
}

void expect_captured(const Training& training) {
  const auto counts = expect_same(training).counts;
  const int kinds = training.accumulate > 1 ? 2 : 1;
  EXPECT_EQ(counts.captured, kinds);
  EXPECT_GE(counts.replayed, training.steps * training.accumulate - 4 * kinds);
}

class RanksGpu : public testing::GpuTest {
 protected:
  const testing::ScopedVariable with_itself_{"LEVIN_TEST_GROUP_OF_ONE", "1"};
};
class CompileDdpGpu : public RanksGpu {};
class CompileFsdpGpu : public RanksGpu {};

TEST_F(CompileDdpGpu, EqualsEager) {
  expect_captured({.steps = 50, .smaller_at_end = true});
}

TEST_F(CompileDdpGpu, Optimizers) {
  expect_captured({.clip = 0, .optimizer = [](const auto& params) -> Optimizer {
                     return optim::SGD(params, {.lr = 1e-2, .momentum = 0.9});
                   }});
  expect_captured({.optimizer = [](const auto& params) -> Optimizer { return optim::Adam(params, {.lr = 1e-2}); }});
}

TEST_F(CompileDdpGpu, Accumulation) {
  expect_captured({.accumulate = 2, .smaller_at_end = true});
  expect_captured({.accumulate = 3, .checkpoints = false, .steps = 10});
  expect_captured({.accumulate = 2, .always_syncs = true});
}

TEST_F(CompileDdpGpu, AccumulationIsFoundOut) {
  for (const bool views : {true, false}) {
    SCOPED_TRACE(views);
    const auto counts =
        expect_same({.strategy = DdpOptions{.gradient_as_bucket_view = views}, .accumulate = 2, .declared = false})
            .counts;
    EXPECT_GE(counts.captured, 2);
    EXPECT_GE(counts.replayed, 24);
  }
}

TEST_F(CompileDdpGpu, Precisions) {
  expect_captured({.precision = "bf16-mixed"});
  expect_captured({.precision = "16-mixed"});
}

TEST_F(CompileDdpGpu, AnOverflowSkipsTheStep) {
  for (const int accumulate : {1, 2}) {
    const Training training{.precision = "16-mixed", .accumulate = accumulate, .overflow_at = 12};
    EXPECT_LT(expect_same(training).scale, 65536);
  }
}

TEST_F(CompileDdpGpu, Options) {
  const auto expect_with = [](const char* what, const DdpOptions& options) {
    SCOPED_TRACE(what);
    expect_captured({.strategy = options});
    expect_captured({.strategy = options, .accumulate = 2, .steps = 10});
  };
  expect_with("static_graph", {.static_graph = true});
  expect_with("find_unused_parameters", {.find_unused_parameters = true});
  expect_with("no views", {.gradient_as_bucket_view = false});
  expect_with("bf16", {.comm_hook = "bf16"});
  expect_with("fp16", {.comm_hook = "fp16"});
  expect_with("small buckets", {.bucket_cap_mb = 0.01});
}

// They lie in the reducer's buckets, or in memory of the graph.
TEST_F(CompileDdpGpu, GradientsCanBeReadAfterTheStep) {
  for (const bool views : {true, false}) {
    SCOPED_TRACE(views);
    expect_captured({.strategy = DdpOptions{.gradient_as_bucket_view = views}, .zeroes_first = true});
  }
}

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() {
    body = register_module("body", torch::nn::Linear(8, 16));
    one = register_module("one", torch::nn::Linear(16, 2));
    two = register_module("two", torch::nn::Linear(16, 2));
  }
  Tensor forward(const Tensor& x, bool both) {
    const auto h = torch::tanh(body(x));
    return both ? one(h) + two(h) : one(h);
  }
  torch::nn::Linear body{nullptr}, one{nullptr}, two{nullptr};
};
TORCH_MODULE(TwoHeads);

/// Decay shows that a parameter was stepped; `both` says when the second head is used.
std::vector<Tensor> train_heads(const DdpOptions& options, const std::function<bool(int)>& both, bool compile) {
  torch::manual_seed(6);
  Fabric fabric({.accelerator = "cuda",
                 .strategy = options,
                 .devices = 1,
                 .compile = compile ? CompileMode("graph") : CompileMode()});
  fabric.launch();
  TwoHeads model;
  auto [net, opt] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-2, .weight_decay = 0.1}));
  auto step = fabric.compile([&, &net = net, &opt = opt](const Tensor& x, bool with_both) {
    fabric.backward(net(x, with_both).pow(2).mean());
    opt.step();
    opt.zero_grad();
  });
  for (int i = 0; i < 16; ++i) step(fabric.to_device(torch::full({4, 8}, 1.0 / (1 + i))), both(i));
  if (compile) {
    EXPECT_GE(step.compiler()->counts().replayed, 8);
  }
  std::vector<Tensor> params;
  for (const auto& p : model->parameters()) params.push_back(p.detach().cpu());
  return params;
}

TEST_F(CompileDdpGpu, UnusedParametersAreNotStepped) {
  const auto expect_equal = [](const DdpOptions& options, const std::function<bool(int)>& both) {
    const auto eager = train_heads(options, both, false), compiled = train_heads(options, both, true);
    for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(torch::equal(eager[i], compiled[i])) << i;
  };
  expect_equal({.find_unused_parameters = true}, [](int) { return false; });
  expect_equal({.find_unused_parameters = true}, [](int i) { return i % 3 != 1; });
  expect_equal({.find_unused_parameters = true, .gradient_as_bucket_view = false}, [](int i) { return i % 2 == 0; });
  expect_equal({.static_graph = true}, [](int) { return false; });
}

TEST_F(CompileDdpGpu, WhatCannotBeCapturedIsNamed) {
  const auto lines = testing::captured_stderr([] {
    const auto counts = expect_same({.strategy = DdpOptions{.comm_hook = "powersgd"}, .steps = 6}).counts;
    EXPECT_EQ(counts.captured, 0);
  });
  EXPECT_NE(lines.find("[compile] step runs eagerly: comm_hook \"powersgd\" counts its steps on the host"),
            std::string::npos)
      << lines;
}

TEST_F(CompileDdpGpu, AFailedCaptureLeavesTheReducerUsable) {
  const auto lines = testing::captured_stderr([] {
    const auto counts =
        expect_same(
            {.steps = 8, .look = [](const Tensor& loss) { (void)loss.item<float>(); }, .name = "impatient step"})
            .counts;
    EXPECT_EQ(counts.captured, 0);
  });
  EXPECT_NE(lines.find("impatient step runs eagerly: the host waits for the device"), std::string::npos) << lines;
}

TEST_F(CompileDdpGpu, OverGlooRunsEagerly) {
  const auto lines = testing::captured_stderr([] {
    const auto counts = expect_same({.strategy = DdpOptions{.process_group_backend = "gloo"}, .steps = 4}).counts;
    EXPECT_EQ(counts.captured, 0);
  });
  EXPECT_NE(lines.find("[compile] steps run eagerly under strategy \"ddp\": its ranks communicate over Gloo"),
            std::string::npos)
      << lines;
}

TEST_F(CompileDdpGpu, ValidationIsCapturedToo) {
  Fabric fabric({.accelerator = "cuda", .strategy = "ddp", .devices = 1, .compile = "graph"});
  fabric.launch();
  torch::nn::Linear model(4, 4);
  auto net = fabric.setup(model);
  model->eval();
  auto step = fabric.compile([&](const Tensor& x) { return net(x); });
  const at::NoGradGuard no_grad;
  const auto x = fabric.to_device(torch::ones({2, 4}));
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(torch::equal(step(x), model(x)));
  EXPECT_EQ(step.compiler()->counts().captured, 1);
}

// NCCL does not end while a graph that uses it lives.
TEST_F(CompileDdpGpu, AGroupThatFailsEndsItsGraphs) {
  const auto start = std::chrono::steady_clock::now();
  {
    Fabric fabric({.accelerator = "cuda", .strategy = "ddp", .devices = 1, .compile = "graph"});
    fabric.launch();
    torch::nn::Linear model(4, 4);
    auto [net, opt] = fabric.setup(model, optim::SGD(model->parameters(), {.lr = 0.1}));
    auto step = fabric.compile([&, &net = net, &opt = opt](const Tensor& x) {
      fabric.backward(net(x).sum());
      opt.step();
      opt.zero_grad();
    });
    const auto x = fabric.to_device(torch::ones({2, 4}));
    for (int i = 0; i < 5; ++i) step(x);
    EXPECT_EQ(step.compiler()->counts().captured, 1);
    report_failure(fabric.strategy().group(), "a test");
    EXPECT_THROW(step(x), Error);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST_F(CompileDdpGpu, ACollectiveThatDoesNotEndEndsTheGroup) {
  Fabric fabric({.accelerator = "cuda",
                 .strategy = DdpOptions{.timeout = std::chrono::seconds(3)},
                 .devices = 1,
                 .compile = "graph"});
  fabric.launch();
  torch::nn::Linear model(4, 4);
  auto [net, opt] = fabric.setup(model, optim::SGD(model->parameters(), {.lr = 0.1}));
  auto step = fabric.compile([&, &net = net, &opt = opt](const Tensor& x) {
    fabric.backward(net(x).sum());
    opt.step();
    opt.zero_grad();
  });
  const auto x = fabric.to_device(torch::ones({2, 4}));
  for (int i = 0; i < 5; ++i) step(x);
  EXPECT_EQ(step.compiler()->counts().captured, 1);
  fabric.strategy().group().watch_work([] { return false; });
  std::string error = "no error";
  for (int i = 0; i < 100 && error == "no error"; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    error = testing::error_of([&] { step(x); });
  }
  EXPECT_NE(error.find("did not end within 3 s"), std::string::npos) << error;
}

StrategyChoice fsdp(const std::string& kind) {
  return FsdpOptions{.auto_wrap_policy = policy::repeated(), .sharding_strategy = kind};
}
StrategyChoice zero(int stage) {
  return ZeroOptions{.stage = stage, .auto_wrap_policy = policy::repeated()};
}

TEST_F(CompileFsdpGpu, EqualsEager) {
  for (const char* kind : {"full", "grad_op", "none"}) {
    SCOPED_TRACE(kind);
    expect_captured({.strategy = fsdp(kind)});
    expect_captured({.strategy = fsdp(kind), .precision = "bf16-mixed"});
  }
}

TEST_F(CompileFsdpGpu, Accumulation) {
  for (const char* kind : {"full", "grad_op"}) {
    SCOPED_TRACE(kind);
    expect_captured({.strategy = fsdp(kind), .accumulate = 2});
    expect_captured({.strategy = fsdp(kind), .accumulate = 2, .always_syncs = true});
  }
  expect_captured({.strategy = fsdp("full"), .precision = "bf16-mixed", .accumulate = 3, .steps = 10});
}

TEST_F(CompileFsdpGpu, AccumulationIsFoundOut) {
  const auto counts = expect_same({.strategy = fsdp("full"), .accumulate = 2, .declared = false}).counts;
  // Of the pass without a reduction the gradients come and go; declared, it is captured too.
  EXPECT_GE(counts.captured, 1);
  EXPECT_GE(counts.replayed, 12);
}

TEST_F(CompileFsdpGpu, Zero) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    expect_captured({.strategy = zero(stage)});
    expect_captured({.strategy = zero(stage), .precision = "bf16-mixed"});
    expect_captured({.strategy = zero(stage), .precision = "bf16-mixed", .accumulate = 2});
    expect_captured({.strategy = zero(stage), .precision = "bf16-mixed", .accumulate = 2, .always_syncs = true});
    expect_captured({.strategy = zero(stage),
                     .precision = "bf16-mixed",
                     .accumulate = 2,
                     .clip = 0,
                     .optimizer = [](const auto& params) -> Optimizer {
                       return optim::SGD(params, {.lr = 1e-2, .momentum = 0.9});
                     }});
  }
}

TEST_F(CompileFsdpGpu, LossScaler) {
  expect_captured({.strategy = fsdp("full"), .precision = "16-mixed"});
}

TEST_F(CompileFsdpGpu, AFailedCaptureLeavesTheShardsUsable) {
  for (const int accumulate : {1, 2}) {
    const auto lines = testing::captured_stderr([&] {
      const auto counts = expect_same({.strategy = fsdp("full"),
                                       .accumulate = accumulate,
                                       .steps = 8,
                                       .look = [](const Tensor& loss) { (void)loss.item<float>(); }})
                              .counts;
      EXPECT_EQ(counts.captured, 0);
    });
  }
}

TEST_F(CompileFsdpGpu, OffloadRunsEagerly) {
  const auto lines = testing::captured_stderr([] {
    const auto counts =
        expect_same({.strategy = FsdpOptions{.auto_wrap_policy = policy::repeated(), .cpu_offload = true}, .steps = 4})
            .counts;
    EXPECT_EQ(counts.captured, 0);
  });
  EXPECT_NE(lines.find("[compile] steps run eagerly under strategy \"fsdp\": the optimizer's step is work of the host"),
            std::string::npos)
      << lines;
}

TEST_F(CompileFsdpGpu, TrainingAndValidationInTurns) {
  const auto run = [](bool compile) {
    torch::manual_seed(4);
    Fabric fabric({.accelerator = "cuda",
                   .strategy = ZeroOptions{.stage = 2},
                   .devices = 1,
                   .compile = compile ? CompileMode("graph") : CompileMode()});
    fabric.launch();
    torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
    auto [net, opt] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-2}));
    auto training = fabric.compile(
        [&, &net = net, &opt = opt](const Tensor& x) {
          auto loss = net(x).pow(2).mean();
          fabric.backward(loss);
          opt.step();
          opt.zero_grad();
          return loss;
        },
        {.name = "training"});
    auto validation = fabric.compile([&, &net = net](const Tensor& x) { return net(x).sum(); }, {.name = "validation"});
    const auto x = fabric.to_device(torch::ones({4, 8}).cumsum(0) / 4);
    std::vector<float> seen;
    for (int i = 0; i < 24; ++i) {
      seen.push_back(training(x).item<float>());
      if (i % 3 != 2) continue;
      const at::NoGradGuard no_grad;
      seen.push_back(validation(x).item<float>());
    }
    if (compile) {
      EXPECT_EQ(training.compiler()->counts().captured, 1);
      EXPECT_EQ(validation.compiler()->counts().captured, 1);
    }
    return seen;
  };
  EXPECT_EQ(run(false), run(true));
}

/// Ranks with a GPU each.
class CompileTwoGpus : public testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (torch::cuda::device_count() < 2) GTEST_SKIP() << "one GPU";
  }
  static std::vector<std::string> losses(const std::string& flags) {
    const auto program = fmt::format("'{}' --accelerator cuda --devices 2 --to 20 --clip 0.5 {}",
                                     testing::test_program("sharding_probe"), flags);
    const auto result = testing::run_program({"/bin/sh", "-c", "exec " + program}, {});
    EXPECT_EQ(result.status, 0) << result.text();
    const auto text = result.text();
    EXPECT_EQ(text.find("runs eagerly"), std::string::npos) << text;
    const std::regex line("step \\d+ loss [-0-9.e]+");
    std::vector<std::string> found;
    for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it) found.push_back((*it)[0]);
    EXPECT_EQ(found.size(), 20u) << text;
    return found;
  }
};

TEST_F(CompileTwoGpus, EqualEager) {
  for (const char* strategy : {"ddp", "fsdp", "stage_1", "stage_2", "stage_3"}) {
    const auto flags = fmt::format("--strategy {}", strategy);
    EXPECT_EQ(losses(flags), losses(flags + " --compile")) << strategy;
  }
}

}  // namespace
}  // namespace levin
