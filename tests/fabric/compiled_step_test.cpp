// Which calls of a step run eagerly, are captured and are replayed: on a device that only counts. docs/compile.md.
#include "levin/fabric/compiled_step.h"

#include <cstring>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/levin.h"
#include "levin/optim/forwarding.h"
#include "levin/optim/zero_grad.h"
#include "levin/testing/capture.h"

namespace levin {
namespace {

using detail::StepCompiler;

/// Captures by running the step, which is one step on the CPU; a replay runs `replayed`.
struct CountingDevice final : detail::GraphDevice {
  struct Graph final : detail::DeviceGraph {
    explicit Graph(CountingDevice& d) : device(d) {}
    void replay() override {
      ++device.replays;
      if (device.replayed) device.replayed();
    }
    std::string why_unfit() const override { return device.unfit; }
    bool is_outdated() const override { return std::exchange(device.outdated, false); }
    CountingDevice& device;
  };

  c10::Device device() const override { return at::kCPU; }
  std::shared_ptr<detail::DeviceGraph> capture(const std::function<void()>& body) override {
    ++captures;
    body();
    return std::make_shared<Graph>(*this);
  }
  void upload(const Tensor& to, const void* host, size_t bytes) override {
    std::memcpy(to.mutable_data_ptr(), host, bytes);
  }
  Tensor alias(const Tensor& tensor, std::shared_ptr<detail::DeviceGraph>) override {
    ++aliases;
    return tensor.detach();
  }
  void empty_cache() override {}

  void set_inputs(const std::vector<Tensor>& given) override { inputs = given.size(); }

  int captures = 0, replays = 0, aliases = 0;
  size_t inputs = 0;
  std::string unfit;
  bool outdated = false;
  std::function<void()> replayed;
};

class CompiledStepTest : public ::testing::Test {
 protected:
  auto compiled(auto step, CompileOptions options = {}) {
    compiler = std::make_shared<StepCompiler>(
        device, [this] { return around; }, options.max_graphs);
    return CompiledStep(std::move(step), compiler, options);
  }

  std::shared_ptr<CountingDevice> device = std::make_shared<CountingDevice>();
  detail::StepSurroundings around;
  std::shared_ptr<StepCompiler> compiler;
};

TEST_F(CompiledStepTest, AGraphThatDoesNotFitAnyMoreGoes) {
  auto step = compiled([&](Batch& batch) { return batch["x"].sum(); });
  const auto call = [&] {
    Batch batch{{"x", torch::ones({4})}};
    step(batch);
  };
  for (int i = 0; i < 4; ++i) call();
  EXPECT_EQ(device->captures, 1);
  EXPECT_EQ(device->inputs, 1u) << "the device knows what differs from replay to replay";
  device->outdated = true;
  for (int i = 0; i < 3; ++i) call();
  EXPECT_EQ(device->captures, 2) << "it is captured again";
  device->unfit = "it does something past the dispatcher";
  const auto replays = device->replays;
  const auto lines = testing::captured_stderr([&] {
    for (int i = 0; i < 3; ++i) call();
  });
  EXPECT_NE(lines.find("step runs eagerly: it does something past the dispatcher"), std::string::npos) << lines;
  EXPECT_EQ(device->replays, replays) << "it runs eagerly";
  EXPECT_EQ(compiler->counts().captured, 2);
}

TEST_F(CompiledStepTest, TwoCallsOfAKindRunEagerlyThenOneIsCaptured) {
  int calls = 0;
  const void* seen = nullptr;
  auto step = compiled([&](Batch& batch) {
    ++calls;
    seen = batch["x"].const_data_ptr();
    return batch["x"].sum();
  });
  for (int i = 0; i < 6; ++i) {
    Batch batch{{"x", torch::full({4}, i)}};
    const auto* own = batch["x"].const_data_ptr();
    step(batch);
    EXPECT_EQ(batch["x"].const_data_ptr(), own) << "the caller's batch is as it was";
    EXPECT_EQ(seen == own, i < 2);
  }
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(device->captures, 1);
  EXPECT_EQ(device->replays, 4);
  EXPECT_EQ(compiler->counts().eager, 2);
}

TEST_F(CompiledStepTest, InputsAreCopiedAndResultsAreCopies) {
  Tensor input, output;
  auto step = compiled([&](const Tensor& x) {
    input = x;
    output = x * 2;
    return output;
  });
  device->replayed = [&] { output.copy_(input * 2); };
  std::vector<Tensor> results;
  for (int i = 0; i < 6; ++i) results.push_back(step(torch::full({2}, 1.0 * i)));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(results[i][1].item<float>(), 2.0f * i) << i;
}

TEST_F(CompiledStepTest, ShapesFlagsAndModesAreOtherKinds) {
  torch::nn::Linear layer(2, 2);
  around.modules = {layer.ptr()};
  auto step = compiled([&](const Tensor& x, bool last) { return last ? layer(x) : x; });
  const auto thrice = [&](auto&&... args) {
    for (int i = 0; i < 3; ++i) step(args...);
  };
  thrice(torch::ones({3, 2}), true);
  EXPECT_EQ(device->captures, 1);
  thrice(torch::ones({2, 2}), true);  // shape
  EXPECT_EQ(device->captures, 2);
  thrice(torch::ones({3, 2}), false);  // flag
  EXPECT_EQ(device->captures, 3);
  layer->eval();  // mode of a module
  thrice(torch::ones({3, 2}), true);
  EXPECT_EQ(device->captures, 4);
  layer->weight.requires_grad_(false);  // what is trained
  thrice(torch::ones({3, 2}), true);
  EXPECT_EQ(device->captures, 5);
  {
    const at::NoGradGuard no_grad;
    thrice(torch::ones({3, 2}), true);
  }
  EXPECT_EQ(device->captures, 6);
  thrice(torch::ones({2, 3}).t(), false);  // strides
  EXPECT_EQ(device->captures, 7);
  thrice(torch::ones({3, 2}, at::kDouble), false);
  EXPECT_EQ(device->captures, 8);
  layer->train();
  layer->weight.requires_grad_(true);
  const auto replays = device->replays;
  step(torch::ones({3, 2}), true);
  EXPECT_EQ(device->captures, 8);
  EXPECT_EQ(device->replays, replays + 1);
}

TEST_F(CompiledStepTest, KeepsAtMostMaxGraphs) {
  auto step = compiled([](const Tensor& x) { return x + 1; }, {.name = "many shapes", .max_graphs = 2});
  const auto lines = testing::captured_stderr([&] {
    for (int64_t size = 1; size < 5; ++size)
      for (int i = 0; i < 4; ++i) step(torch::ones({size}));
  });
  EXPECT_EQ(device->captures, 2);
  EXPECT_NE(lines.find("many shapes runs eagerly: there are 2 graphs"), std::string::npos) << lines;
}

TEST_F(CompiledStepTest, WhatCannotBeCapturedRunsEagerlyWithTheReason) {
  int done = 0;
  auto step = compiled(
      [&](const Tensor& x) {
        detail::refuse_capture("it asks for the moon");
        ++done;
        return x;
      },
      {.name = "lunar step"});
  const auto lines = testing::captured_stderr([&] {
    for (int i = 0; i < 5; ++i) step(torch::ones({1}));
  });
  EXPECT_EQ(done, 5);
  EXPECT_EQ(device->captures, 1);
  EXPECT_EQ(device->replays, 0);
  EXPECT_NE(lines.find("[compile] lunar step runs eagerly: it asks for the moon\n"), std::string::npos) << lines;
}

TEST_F(CompiledStepTest, AFailedCapturePutsGradientsBack) {
  torch::nn::Linear layer(2, 1);
  around.modules = {layer.ptr()};
  auto step = compiled([&](const Tensor& x) {
    layer->zero_grad();
    layer(x).sum().backward();
    detail::refuse_capture("no");
    return x;
  });
  for (int i = 0; i < 4; ++i) {
    step(torch::full({1, 2}, 3.0));
    EXPECT_EQ(layer->weight.grad()[0][0].item<float>(), 3) << i;
  }
}

/// An optimizer of somebody else, who does not say that it can be captured.
class Foreign final : public optim::ForwardingOptimizer {
 public:
  explicit Foreign(Optimizer inner) : ForwardingOptimizer(std::move(inner)) {}
  void step() override { inner().step(); }
};

TEST_F(CompiledStepTest, OptimizersThatCannotBeCapturedAreNamed) {
  torch::nn::Linear layer(2, 1);
  Optimizer lion(std::make_shared<Foreign>(optim::Lion(layer->parameters(), {.lr = 1e-3})));
  around = {.modules = {layer.ptr()}, .optimizers = {lion.impl()}};
  auto step = compiled([&](const Tensor& x) {
    layer(x).sum().backward();
    lion.step();
    lion.zero_grad();
  });
  const auto lines = testing::captured_stderr([&] {
    for (int i = 0; i < 4; ++i) step(torch::ones({1, 2}));
  });
  EXPECT_EQ(device->captures, 0);
  EXPECT_NE(lines.find("step runs eagerly: Lion works out its step with numbers of the host"), std::string::npos)
      << lines;
  EXPECT_EQ(optim::AdamW(layer->parameters()).impl()->prepare_capture(), "");
  EXPECT_EQ(optim::SGD(layer->parameters(), {.lr = 1}).impl()->prepare_capture(), "");
  EXPECT_EQ(optim::Lion(layer->parameters()).impl()->prepare_capture(), "");
  layer->to(at::kBFloat16);
  EXPECT_NE(optim::Lion(layer->parameters()).impl()->prepare_capture().find("16-bit"), std::string::npos);
}

TEST(CapturedOptimizer, NumbersOfTheGraphCountAsItsLayout) {
  torch::nn::Linear layer(2, 1);
  optim::Lamb lamb(layer->parameters());
  const auto before = lamb.impl()->layout_version();
  lamb.set_lr(0.5);
  EXPECT_EQ(lamb.impl()->layout_version(), before);
  lamb.hyper("beta1") = 0.5;
  EXPECT_NE(lamb.impl()->layout_version(), before);
}

TEST_F(CompiledStepTest, GraphsAreCapturedAgainWhenMemoryMoves) {
  torch::nn::Linear layer(2, 1);
  optim::SGD sgd(layer->parameters(), {.lr = 0.1, .momentum = 0.9});
  around = {.modules = {layer.ptr()}, .optimizers = {sgd.impl()}};
  auto step = compiled([&](const Tensor& x) {
    layer(x).sum().backward();
    sgd.step();
    sgd.zero_grad();
  });
  const auto call = [&](int times) {
    for (int i = 0; i < times; ++i) step(torch::ones({1, 2}));
  };
  call(4);
  EXPECT_EQ(device->captures, 1);
  EXPECT_EQ(device->replays, 2);
  sgd.load_state_dict(sgd.state_dict());
  call(1);  // eagerly, to make what is missing
  EXPECT_EQ(device->captures, 1);
  call(2);
  EXPECT_EQ(device->captures, 2);
  layer->weight.set_data(layer->weight.detach().clone());
  call(3);
  EXPECT_EQ(device->captures, 3);
  ++around.version;
  call(3);
  EXPECT_EQ(device->captures, 4);
  EXPECT_EQ(compiler->counts().dropped, 2);
}

TEST_F(CompiledStepTest, AccumulationIsFoundOut) {
  torch::nn::Linear layer(2, 1);
  around.modules = {layer.ptr()};
  auto step = compiled([&](const Tensor& x, bool last) {
    layer(x).sum().backward();
    if (last) optim::zero_grad(layer->parameters(), /*set_to_none=*/true);
  });
  for (int i = 0; i < 4; ++i) {
    step(torch::ones({1, 2}), false);
    step(torch::ones({1, 2}), true);
  }
  // From there on gradients stay where they are.
  const auto* grad = layer->weight.grad().const_data_ptr();
  EXPECT_GE(device->captures, 2);
  step(torch::ones({1, 2}), false);
  EXPECT_EQ(layer->weight.grad().const_data_ptr(), grad);
  layer->zero_grad();
  step(torch::ones({1, 2}), false);
  EXPECT_EQ(layer->weight.grad().const_data_ptr(), grad) << "none stands for zeros";
}

// A graph that makes gradients would put those of its second call in place of those of the first.
TEST_F(CompiledStepTest, AccumulationOverSeveralCallsOfAKindIsFoundOut) {
  torch::nn::Linear layer(torch::nn::LinearOptions(2, 1).bias(false));
  around.modules = {layer.ptr()};
  bool eager_last = false;
  auto step = compiled([&](const Tensor&, bool last) {
    layer(torch::ones({1, 2})).sum().backward();
    eager_last = last && !detail::is_capturing();
    if (last) optim::zero_grad(layer->parameters(), true);
  });
  const auto window = [&](int calls) {
    for (int i = 0; i < calls; ++i) step(torch::ones({1, 2}), i + 1 == calls);
  };
  window(1);
  window(1);
  window(1);  // captured without gradients before it
  EXPECT_EQ(device->captures, 1);
  step(torch::ones({1, 2}), false);
  step(torch::ones({1, 2}), true);
  EXPECT_TRUE(eager_last) << "the graph would not see the gradients of the call before";
  EXPECT_EQ(device->captures, 1);
  window(2);
  window(2);
  EXPECT_GE(device->captures, 2);  // with gradients that keep their memory
  EXPECT_TRUE(layer->weight.grad().defined());
}

TEST_F(CompiledStepTest, AFrozenParameterHasNoGradientWhereGradientsKeepTheirMemory) {
  torch::nn::Linear layer(2, 1);
  around.modules = {layer.ptr()};
  auto step = compiled(
      [&](const Tensor& x) {
        layer(x).sum().backward();
        optim::zero_grad(layer->parameters(), true);
      },
      {.accumulates_gradients = true});
  const auto x = torch::ones({1, 2});
  for (int i = 0; i < 4; ++i) step(x);
  EXPECT_EQ(device->captures, 1);
  EXPECT_TRUE(layer->bias.grad().defined());
  layer->bias.set_requires_grad(false);
  for (int i = 0; i < 4; ++i) {
    step(x);
    EXPECT_FALSE(layer->bias.grad().defined()) << i;
  }
  EXPECT_EQ(device->captures, 2);
  EXPECT_TRUE(layer->weight.grad().defined());
  layer->bias.set_requires_grad(true);
  step(x);  // the first graph again
  EXPECT_EQ(device->captures, 2);
  EXPECT_TRUE(layer->bias.grad().defined());
}

TEST_F(CompiledStepTest, ALossThatIsKeptWithItsGraphIsNamed) {
  torch::nn::Linear layer(2, 1);
  around.modules = {layer.ptr()};
  Tensor kept;
  auto step = compiled([&](const Tensor& x) { kept = layer(x).sum(); });
  const auto lines = testing::captured_stderr([&] {
    for (int i = 0; i < 6; ++i) step(torch::ones({1, 2}));
  });
  EXPECT_EQ(device->captures, 0);
  EXPECT_NE(lines.find("is kept with its graph; detach it"), std::string::npos) << lines;
}

struct Around final : ModuleSync {
  void before_forward() override {}
  void after_forward(std::span<Tensor>) override {}
  void before_backward(const Tensor&) override {}
  void after_backward(const std::exception*) override {}
  void set_sync(bool) override {}
  bool communicates() const override { return at::GradMode::is_enabled(); }
  std::string prepare_capture(bool) override { return reason; }
  void capture_failed() override { ++failed; }
  uint64_t layout_version() const override { return layout; }
  Tensor gradient_memory(const Tensor&) override { return memory; }
  bool is_settled() const override { return settled; }

  Tensor memory;
  std::string reason;
  int failed = 0;
  uint64_t layout = 0;
  bool settled = true;
};

/// This rank and another one, which brings the numbers that a test wants: 0 it cannot, 1 it runs eagerly, 2 it
/// captures, 3 it replays; after a capture 1 for success.
class CompiledRanks : public CompiledStepTest {
 protected:
  void SetUp() override {
    around.syncs = {sync};
    around.exchange = [this](int64_t mine) {
      EXPECT_FALSE(others.empty()) << "ranks meet once too often";
      const auto other = others.empty() ? 0 : others.front();
      if (!others.empty()) others.erase(others.begin());
      return std::vector<int64_t>{mine, mine - mine % 8 + other};
    };
    around.share = [](const std::string& text, int rank) { return rank == 1 ? "it is shy" : text; };
  }
  std::shared_ptr<Around> sync = std::make_shared<Around>();
  std::vector<int64_t> others;
};

TEST_F(CompiledRanks, AllReplayOrNone) {
  auto step = compiled([&](const Tensor& x) { return x * 2; });
  const auto x = torch::ones({2});
  others = {1, 1, 1, 1};
  for (int i = 0; i < 4; ++i) step(x);
  EXPECT_EQ(device->captures, 0) << "the other rank is not as far";
  others = {3, 1};
  step(x);
  EXPECT_EQ(device->captures, 1);
  EXPECT_EQ(device->replays, 1);
  others = {1};
  step(x);
  EXPECT_EQ(device->replays, 1) << "the other rank has another kind of batch";
  others = {2, 1};
  step(x);
  EXPECT_EQ(device->captures, 1);
  EXPECT_EQ(device->replays, 2);
  EXPECT_TRUE(others.empty());
  const at::NoGradGuard no_grad;  // ranks need not make as many of these
  for (int i = 0; i < 4; ++i) step(x);
  EXPECT_EQ(device->captures, 2);
}

TEST_F(CompiledRanks, ACaptureThatFailsElsewhereIsUndone) {
  torch::nn::Linear layer(2, 1);
  around.modules = {layer.ptr()};
  int calls = 0;
  auto step = compiled([&](const Tensor& x) {
    ++calls;
    layer->zero_grad();
    layer(x).sum().backward();
  });
  others = {1, 1, 2, 0, 1};
  for (int i = 0; i < 4; ++i) step(torch::full({1, 2}, 1.0 + i));
  EXPECT_EQ(device->captures, 1);
  EXPECT_EQ(device->replays, 0);
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(layer->weight.grad()[0][0].item<float>(), 4);
}

TEST_F(CompiledRanks, AllGiveUpTogether) {
  auto step = compiled([](const Tensor& x) { return x; }, {.name = "uneven step"});
  const auto lines = testing::captured_stderr([&] {
    others = {0};  // and they do not meet again
    for (int i = 0; i < 5; ++i) step(torch::ones({1}));
  });
  EXPECT_EQ(device->captures, 0);
  EXPECT_NE(lines.find("uneven step runs eagerly: on rank 1: it is shy"), std::string::npos) << lines;
  EXPECT_TRUE(compiler->refuses("uneven step"));
}

TEST_F(CompiledRanks, GradientsThatStayAreWhereTheStrategyWantsThem) {
  torch::nn::Linear layer(torch::nn::LinearOptions(2, 1).bias(false));
  around.modules = {layer.ptr()};
  // Inputs of a graph have no values yet when it is captured.
  auto step = compiled(
      [&](const Tensor&) {
        layer(torch::ones({1, 2})).sum().backward();
      },
      {.accumulates_gradients = true});
  const auto call = [&](int times) {
    for (int i = 0; i < times; ++i) {
      others.assign(2, 1);
      others.front() = 3;
      step(torch::ones({1, 2}));
    }
  };
  call(2);
  EXPECT_EQ(layer->weight.grad()[0][0].item<float>(), 2);
  sync->memory = torch::full({1, 2}, 70.0);
  call(1);  // captured on the CPU, where that is a step
  EXPECT_EQ(device->captures, 1);
  EXPECT_TRUE(layer->weight.grad().is_same(sync->memory));
  EXPECT_EQ(sync->memory[0][0].item<float>(), 3);
  sync->memory = torch::full({1, 2}, 70.0);  // a bucket that was built again
  ++sync->layout;
  call(2);
  EXPECT_EQ(device->captures, 2);
  EXPECT_TRUE(layer->weight.grad().is_same(sync->memory));
  EXPECT_EQ(sync->memory[0][0].item<float>(), 5);
}

TEST_F(CompiledRanks, GradientsInMemoryOfTheStrategyStayThere) {
  torch::nn::Linear layer(torch::nn::LinearOptions(2, 1).bias(false));
  around.modules = {layer.ptr()};
  sync->memory = torch::zeros({1, 2});
  auto step = compiled([&](const Tensor&) {
    layer->zero_grad();
    layer(torch::ones({1, 2})).sum().backward();
    sync->memory.copy_(layer->weight.grad());
    layer->weight.mutable_grad() = sync->memory.variable_data();
  });
  others = {1, 1, 3, 1, 3};
  for (int i = 0; i < 4; ++i) step(torch::ones({1, 2}));
  EXPECT_EQ(device->captures, 1);
  EXPECT_EQ(compiler->counts().replayed, 2);
  EXPECT_EQ(device->aliases, 0) << "it would keep the graph alive, and not the memory";
  EXPECT_TRUE(layer->weight.grad().is_alias_of(sync->memory));
}

TEST_F(CompiledRanks, ACaptureWaitsForMemoryThatIsAboutToMove) {
  auto step = compiled([](const Tensor& x) { return x; });
  sync->settled = false;
  others = {1, 1, 3, 1};
  for (int i = 0; i < 3; ++i) step(torch::ones({1}));
  EXPECT_EQ(device->captures, 0);
  sync->settled = true;
  others = {3, 1};
  step(torch::ones({1}));
  EXPECT_EQ(device->captures, 1);
  // But not for ever: a module may be no part of any loss.
  sync->settled = false;
  for (int i = 0; i < 6; ++i) {
    others.assign(2, 3);
    if (i > 1) others[1] = 1;
    step(torch::ones({2}));
  }
  EXPECT_EQ(device->captures, 2);
}

TEST_F(CompiledRanks, WhatAStrategySaysCounts) {
  int refusals = 1;
  auto step = compiled(
      [&](const Tensor& x) {
        if (refusals > 0 && detail::is_capturing()) {
          --refusals;
          detail::refuse_capture("not now");
        }
        EXPECT_TRUE(!detail::is_capturing() || detail::current_step()->ranks_agree);
        return x;
      },
      {.name = "strategic step"});
  others = {1, 1, 3, 1, 3, 3, 3, 1, 3, 3, 1};
  for (int i = 0; i < 3; ++i) step(torch::ones({1}));
  EXPECT_EQ(sync->failed, 1);
  for (int i = 0; i < 3; ++i) step(torch::ones({2}));  // another kind
  EXPECT_EQ(device->captures, 2);
  EXPECT_EQ(device->replays, 1);
  ++sync->layout;
  for (int i = 0; i < 2; ++i) step(torch::ones({2}));
  EXPECT_EQ(compiler->counts().dropped, 1);
  EXPECT_EQ(device->captures, 3);
  sync->reason = "its strategy is shy";
  others.assign(20, 3);
  const auto lines = testing::captured_stderr([&] {
    for (int i = 0; i < 4; ++i) step(torch::ones({3}));
  });
  EXPECT_NE(lines.find("strategic step runs eagerly: its strategy is shy"), std::string::npos) << lines;
}

TEST(CapturedOptimizer, NeedsItsStateBefore) {
  torch::nn::Linear layer(2, 1);
  const std::vector<Optimizer> optimizers{optim::AdamW(layer->parameters()),
                                          optim::SGD(layer->parameters(), {.lr = 0.1, .momentum = 0.9})};
  for (auto optimizer : optimizers) {
    layer->zero_grad();
    layer(torch::ones({1, 2})).sum().backward();
    detail::RefreshedValues values(at::kCPU);
    const detail::StepScope scope{.values = &values};
    {
      const detail::EnterStep enter(scope);
      EXPECT_THROW(optimizer.step(), detail::CaptureRefused) << optimizer.name();
    }
    optimizer.step();
    const detail::EnterStep enter(scope);
    optimizer.step();
  }
}

// Counters on the host count replays, not captures, which may fail.
TEST(CapturedOptimizer, CountsStepsOfReplays) {
  torch::nn::Linear layer(2, 1);
  const std::vector<Optimizer> optimizers{optim::Lamb(layer->parameters()), optim::Adafactor(layer->parameters())};
  for (auto optimizer : optimizers) {
    layer->zero_grad();
    layer(torch::ones({1, 2})).sum().backward();
    const auto steps = [&] {
      return optimizer.state_dict().at("state").to_dict().at("0").to_dict().at("step").to_tensor().item<float>();
    };
    optimizer.step();
    detail::RefreshedValues values(at::kCPU);
    {
      const detail::StepScope scope{.values = &values};
      const detail::EnterStep enter(scope);
      optimizer.step();
    }
    EXPECT_EQ(steps(), 1) << optimizer.name();
    CountingDevice device;
    values.refresh(device);
    EXPECT_EQ(steps(), 2) << optimizer.name();
    values.refresh(device);
    EXPECT_EQ(steps(), 3) << optimizer.name();
    EXPECT_GE(values.uploads(), 1) << optimizer.name();
  }
}

TEST(FabricCompile, IsThePlainFunctionOnTheCpu) {
  const auto train = [](bool compile) {
    torch::manual_seed(4);
    Fabric fabric({.accelerator = "cpu", .devices = 1, .compile = compile});
    torch::nn::Linear model(8, 1);
    auto [net, opt] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-2}));
    auto step = fabric.compile([&, &net = net, &opt = opt](Batch& batch) {
      auto loss = net(batch["x"]).pow(2).mean();
      fabric.backward(loss);
      opt.step();
      opt.zero_grad();
      return loss;
    });
    EXPECT_EQ(step.compiler(), nullptr);
    for (int i = 0; i < 5; ++i) {
      Batch batch{{"x", torch::randn({4, 8})}};
      step(batch);
    }
    return model->weight.detach().clone();
  };
  const auto plain = train(false);
  Tensor compiled;
  const auto lines = testing::captured_stderr([&] { compiled = train(true); });
  EXPECT_TRUE(torch::equal(plain, compiled));
  EXPECT_NE(lines.find("[compile] steps are not captured on cpu: CUDA graphs need a GPU"), std::string::npos) << lines;
}

TEST_F(CompiledStepTest, AScalerThatStepsOutsideTheGraphCountsEveryStep) {
  auto w = torch::ones({3}).requires_grad_();
  optim::SGD opt({w}, {.lr = 0.1});
  GradScaler scaler({.init_scale = 16, .growth_interval = 4});
  around.optimizers = {opt.impl()};
  around.scaler = &scaler;
  // Without the input: a replay here computes nothing, and inputs of a capture hold anything.
  auto step = compiled([&](const Tensor&) {
    w.mutable_grad().reset();
    auto loss = w.sum();
    scaler.scale(loss).backward();
    return loss.detach();
  });
  for (int i = 1; i <= 10; ++i) {
    step(torch::ones({3}));
    scaler.step(opt);
    scaler.update();
    EXPECT_EQ(scaler.current_scale(), 16 << i / 4);
    EXPECT_EQ(scaler.state_dict().at("_growth_tracker").to_int(), i % 4);
  }
  EXPECT_GT(device->replays, 5);
}

}  // namespace
}  // namespace levin
