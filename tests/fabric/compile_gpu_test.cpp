// Compiled steps on a GPU against the same steps run eagerly: bit by bit.
#include <functional>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/checkpoint/state_copy.h"
#include "levin/levin.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"
#include "levin/testing/gpu.h"

namespace levin {
namespace {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double dropout = 0.0)
      : first(register_module("first", torch::nn::Linear(16, 64))),
        norm(register_module("norm", torch::nn::BatchNorm1d(64))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        last(register_module("last", torch::nn::Linear(64, 4))) {}
  Tensor forward(const Tensor& x) { return last(drop(torch::relu(norm(first(x))))); }

  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear last;
};
TORCH_MODULE(Net);

using MakeOptimizer = std::function<Optimizer(const std::vector<Tensor>&)>;

struct Training {
  MakeOptimizer optimizer = [](const auto& params) -> Optimizer { return optim::AdamW(params, {.lr = 1e-2}); };
  std::function<void(Optimizer&, int step)> schedule = {};
  std::string precision = "32-true";
  double dropout = 0;
  double clip = 0;
  int accumulate = 1;
  /// Said in advance, or found out.
  bool declared = true;
  int steps = 50;
  /// Every 7th batch is of another size.
  bool uneven = false;
  /// The loss of this step overflows.
  int overflow_at = -1;
  std::function<void(const Tensor& loss)> look = {};
};

struct Outcome {
  std::vector<Tensor> state;
  std::vector<float> losses;
  detail::StepCompiler::Counts counts;
  double scale = 0;
};

/// All tensors of a state, in order.
void add_tensors(const StateValue& value, std::vector<Tensor>& to) {
  if (value.is_tensor()) to.push_back(value.to_tensor().cpu().clone());
  if (value.is_list())
    for (const auto& item : value.to_list()) add_tensors(item, to);
  if (value.is_dict())
    for (const auto& [name, item] : value.to_dict()) add_tensors(item, to);
}

Outcome train(const Training& t, bool compile) {
  torch::manual_seed(11);
  Fabric fabric({.accelerator = "cuda",
                 .devices = 1,
                 .precision = t.precision,
                 .compile = compile ? CompileMode("graph") : CompileMode()});
  fabric.launch();
  Net model(t.dropout);
  auto [net, opt] = fabric.setup(model, t.optimizer(model->parameters()));
  auto step = fabric.compile(
      [&, &net = net, &opt = opt](Batch& batch, bool last) {
        auto loss = torch::cross_entropy_loss(net(batch["x"]), batch["y"]) * batch["factor"] / t.accumulate;
        if (t.look) t.look(loss);
        fabric.backward(loss);
        if (!last) return loss;
        if (t.clip > 0) fabric.clip_gradients(opt, {.max_norm = t.clip});
        opt.step();
        opt.zero_grad();
        return loss;
      },
      {.accumulates_gradients = t.accumulate > 1 && t.declared});
  auto generator = at::detail::createCPUGenerator(5);
  Outcome outcome;
  std::vector<Tensor> losses;
  for (int i = 0; i < t.steps; ++i) {
    if (t.schedule) t.schedule(opt, i);
    const int64_t n = t.uneven && i % 7 == 6 ? 24 : 32;
    Batch batch{{"x", fabric.to_device(at::randn({n, 16}, generator, at::kFloat))},
                {"y", fabric.to_device(at::randint(0, 4, {n}, generator, at::kLong))},
                {"factor", fabric.to_device(torch::full({}, i == t.overflow_at ? 1e38f : 1.0f))}};
    losses.push_back(step(batch, (i + 1) % t.accumulate == 0));
  }
  for (const auto& loss : losses) outcome.losses.push_back(loss.item<float>());
  for (const auto& p : model->parameters()) outcome.state.push_back(p.detach().cpu());
  for (const auto& b : model->buffers()) outcome.state.push_back(b.detach().cpu());
  add_tensors(opt.state_dict(), outcome.state);
  if (step.compiler()) outcome.counts = step.compiler()->counts();
  if (fabric.grad_scaler()) outcome.scale = fabric.grad_scaler()->current_scale();
  return outcome;
}

/// Returns the compiled one.
Outcome expect_same(const Training& training) {
  const auto eager = train(training, false);
  auto compiled = train(training, true);
  EXPECT_EQ(eager.losses, compiled.losses);
  EXPECT_EQ(eager.state.size(), compiled.state.size());
  for (size_t i = 0; i < eager.state.size(); ++i)
    EXPECT_TRUE(torch::equal(eager.state[i], compiled.state[i]))
        << i << ": " << (eager.state[i].to(at::kDouble) - compiled.state[i].to(at::kDouble)).abs().max().item<double>();
  EXPECT_EQ(eager.scale, compiled.scale);
  return compiled;
}

class CompileGpu : public levin::testing::GpuTest {};

TEST_F(CompileGpu, EveryCapturableOptimizer) {
  const std::vector<MakeOptimizer> makers{
      [](const auto& p) -> Optimizer { return optim::Adam(p, {.lr = 1e-2, .weight_decay = 0.1}); },
      [](const auto& p) -> Optimizer { return optim::AdamW(p, {.lr = 1e-2, .amsgrad = true}); },
      [](const auto& p) -> Optimizer { return optim::SGD(p, {.lr = 0.1}); },
      [](const auto& p) -> Optimizer { return optim::SGD(p, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}); },
      [](const auto& p) -> Optimizer { return optim::AdamW(p, {.lr = 1e-2, .moments_dtype = at::kBFloat16}); },
      [](const auto& p) -> Optimizer { return optim::AdamW8bit(p, {.lr = 1e-2}); },
      [](const auto& p) -> Optimizer { return optim::Lion(p, {.lr = 1e-3, .weight_decay = 0.1}); },
      [](const auto& p) -> Optimizer { return optim::Adagrad(p, {.lr = 1e-2, .lr_decay = 0.01, .weight_decay = 0.1}); },
      [](const auto& p) -> Optimizer { return optim::Lamb(p, {.lr = 1e-2}); },
      [](const auto& p) -> Optimizer { return optim::Adafactor(p, {.lr = 1e-2, .weight_decay = 0.1}); },
  };
  for (const auto& maker : makers) {
    const auto counts = expect_same({.optimizer = maker}).counts;
    EXPECT_EQ(counts.eager, 2);
    EXPECT_EQ(counts.captured, 1);
    EXPECT_EQ(counts.replayed, 48);
  }
}

TEST_F(CompileGpu, SchedulersOfOptimizersOfOperators) {
  const std::vector<MakeOptimizer> makers{
      [](const auto& p) -> Optimizer { return optim::Lion(p, {.lr = 1e-3, .weight_decay = 0.1}); },
      [](const auto& p) -> Optimizer { return optim::Adagrad(p, {.lr = 1e-2}); },
      [](const auto& p) -> Optimizer { return optim::Lamb(p, {.lr = 1e-2}); },
      [](const auto& p) -> Optimizer { return optim::Adafactor(p, {.lr = 1e-2, .weight_decay = 0.1}); },
  };
  for (const auto& maker : makers) {
    const auto counts = expect_same({.optimizer = maker,
                                     .schedule =
                                         [](Optimizer& optimizer, int step) {
                                           optimizer.set_lr(1e-2 / (1 + step));
                                           // Other numbers are part of the graph, which is captured again.
                                           if (step == 20) optimizer.hyper("weight_decay") = 0.05;
                                         }})
                            .counts;
    EXPECT_EQ(counts.captured, 2);
  }
}

TEST_F(CompileGpu, SixteenBitParametersOfOptimizersOfOperators) {
  const auto lines = testing::captured_stderr([] {
    const auto counts = expect_same({.optimizer = [](const auto& p) -> Optimizer { return optim::Lion(p); },
                                     .precision = "bf16-true",
                                     .steps = 6})
                            .counts;
    EXPECT_EQ(counts.captured, 0);
  });
  EXPECT_NE(lines.find("Lion steps 16-bit parameters"), std::string::npos) << lines;
}

TEST_F(CompileGpu, SchedulersWork) {
  const auto counts = expect_same({.schedule = [](Optimizer& optimizer, int step) {
                        optimizer.set_lr(1e-2 / (1 + step));
                        optimizer.hyper("beta1") = 0.8 + 0.003 * step;
                        optimizer.hyper("weight_decay") = 1e-3 * step;
                      }}).counts;
  EXPECT_EQ(counts.captured, 1);
}

TEST_F(CompileGpu, ClippingDropoutAndBatchNorm) {
  expect_same({.dropout = 0.3, .clip = 0.05});
}

TEST_F(CompileGpu, CheckpointedUnitsWithDropout) {
  const auto run = [](bool compile) {
    torch::manual_seed(6);
    Fabric fabric({.accelerator = "cuda", .devices = 1, .compile = compile ? CompileMode("graph") : CompileMode()});
    fabric.launch();
    auto model = models::vit({.image_size = 32,
                              .patch_size = 8,
                              .num_layers = 2,
                              .num_heads = 4,
                              .hidden_dim = 64,
                              .mlp_dim = 128,
                              .dropout = 0.2,
                              .num_classes = 10});
    checkpoint_activations(model, policy::repeated());
    auto [net, opt] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-3}));
    auto step = fabric.compile([&, &net = net, &opt = opt](Batch& batch) {
      auto loss = cross_entropy(net(batch["image"]), batch["label"]);
      fabric.backward(loss);
      opt.step();
      opt.zero_grad();
      return loss;
    });
    std::vector<float> losses;
    for (int i = 0; i < 12; ++i) {
      Batch batch{{"image", fabric.to_device(torch::randn({8, 3, 32, 32}))},
                  {"label", fabric.to_device(torch::randint(0, 10, {8}))}};
      losses.push_back(step(batch).item<float>());
    }
    if (compile) {
      EXPECT_EQ(step.compiler()->counts().captured, 1);
    }
    return losses;
  };
  EXPECT_EQ(run(false), run(true));
}

TEST_F(CompileGpu, Accumulation) {
  const auto counts = expect_same({.clip = 1, .accumulate = 3, .steps = 51}).counts;
  EXPECT_EQ(counts.captured, 2);  // with the optimizer's step and without
}

TEST_F(CompileGpu, AccumulationIsFoundOut) {
  for (const int accumulate : {2, 3, 4})
    EXPECT_GE(expect_same({.accumulate = accumulate, .declared = false}).counts.replayed, 20) << accumulate;
}

// Decay would show it.
TEST_F(CompileGpu, AFrozenParameterIsNotStepped) {
  const auto run = [](int accumulate, bool compile) {
    torch::manual_seed(2);
    Fabric fabric({.accelerator = "cuda", .devices = 1, .compile = compile ? CompileMode("graph") : CompileMode()});
    fabric.launch();
    torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 4));
    auto [net, opt] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-2, .weight_decay = 0.1}));
    auto step = fabric.compile(
        [&, &net = net, &opt = opt](const Tensor& x, bool last) {
          fabric.backward(net(x).pow(2).mean());
          if (!last) return;
          opt.step();
          opt.zero_grad();
        },
        {.accumulates_gradients = accumulate > 1});
    for (int i = 0; i < 48; ++i) {
      if (i == 16 || i == 32) model[0]->as<torch::nn::Linear>()->weight.set_requires_grad(i == 32);
      step(fabric.to_device(torch::full({4, 8}, 1.0 / (1 + i))), (i + 1) % accumulate == 0);
    }
    if (compile) {
      EXPECT_GE(step.compiler()->counts().captured, 2 * accumulate);
    }
    std::vector<Tensor> params;
    for (const auto& p : model->parameters()) params.push_back(p.detach().cpu());
    return params;
  };
  for (const int accumulate : {1, 2}) {
    const auto eager = run(accumulate, false), compiled = run(accumulate, true);
    for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(torch::equal(eager[i], compiled[i])) << accumulate << i;
  }
}

TEST_F(CompileGpu, BatchesOfAnotherSizeInBetween) {
  const auto counts = expect_same({.dropout = 0.2, .uneven = true}).counts;
  EXPECT_EQ(counts.captured, 2);
  EXPECT_EQ(counts.eager, 4);
}

TEST_F(CompileGpu, UnevenBatchesWithinAccumulation) {
  expect_same({.accumulate = 2, .steps = 60, .uneven = true});
}

TEST_F(CompileGpu, MixedPrecisions) {
  expect_same({.precision = "bf16-mixed", .dropout = 0.1});
  expect_same({.precision = "bf16-true"});
  expect_same({.precision = "16-mixed", .clip = 1});
  const auto outcome = expect_same({.precision = "16-mixed", .overflow_at = 20});
  EXPECT_EQ(outcome.counts.captured, 1);
  EXPECT_EQ(outcome.scale, 32768);
}

TEST_F(CompileGpu, TwoOptimizersUnderALossScaler) {
  const auto trained = [](bool compile) {
    torch::manual_seed(12);
    Fabric fabric({.accelerator = "cuda",
                   .devices = 1,
                   .precision = "16-mixed",
                   .plugins = {.grad_scaler = {.init_scale = 256, .growth_interval = 4}},
                   .compile = compile ? CompileMode("graph") : CompileMode()});
    fabric.launch();
    Net model;
    auto net = fabric.setup(model);
    auto first = fabric.setup_optimizers(optim::SGD(model->first->parameters(), {.lr = 1e-2}));
    auto last = fabric.setup_optimizers(optim::SGD(model->last->parameters(), {.lr = 1e-2}));
    auto step = fabric.compile([&](Batch& batch) {
      auto loss = net(batch["x"]).pow(2).mean();
      fabric.backward(loss);
      fabric.clip_gradients(last, {.max_norm = 1});
      first.step();
      last.step();
      first.zero_grad();
      last.zero_grad();
      return loss;
    });
    for (int i = 0; i < 20; ++i) {
      Batch batch{{"x", fabric.to_device(torch::randn({32, 16}))}};
      step(batch);
    }
    EXPECT_EQ(fabric.grad_scaler()->current_scale(), 256 << 5);
    if (step.compiler()) {
      EXPECT_EQ(step.compiler()->counts().captured, 1);
    }
    return std::pair(model->first->weight.detach().cpu(), model->last->weight.detach().cpu());
  };
  const auto eager = trained(false), compiled = trained(true);
  EXPECT_TRUE(torch::equal(eager.first, compiled.first));
  EXPECT_TRUE(torch::equal(eager.second, compiled.second));
}

TEST_F(CompileGpu, WhatWaitsForTheDeviceRunsEagerly) {
  Outcome outcome;
  const auto lines = testing::captured_stderr(
      [&] { outcome = expect_same({.dropout = 0.3, .look = [](const Tensor& loss) { (void)loss.item<float>(); }}); });
  EXPECT_EQ(outcome.counts.captured, 0);
  EXPECT_EQ(outcome.counts.replayed, 0);
  EXPECT_NE(lines.find("[compile] step runs eagerly: the host waits for the device"), std::string::npos) << lines;
}

struct WaitingImpl : torch::nn::Module {
  WaitingImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  Tensor forward(const Tensor& x) {
    auto y = linear(x);
    return y.sum().item<float>() > 1e30 ? x : y;
  }
  torch::nn::Linear linear;
};
LEVIN_MODULE(Waiting);

struct BodyImpl : torch::nn::Module {
  BodyImpl() : gate(register_module("gate", Waiting())) {}
  Tensor forward(const Tensor& x) { return gate(x); }
  Waiting gate;
};
LEVIN_MODULE(Body);

TEST_F(CompileGpu, TheUnitThatWaitsForTheDeviceIsNamed) {
  const auto lines = testing::captured_stderr([] {
    Fabric fabric({.accelerator = "cuda", .devices = 1, .compile = "graph"});
    fabric.launch();
    Body model;
    auto [net, opt] = fabric.setup(model, optim::SGD(model->parameters(), {.lr = 0.1}));
    auto step = fabric.compile([&, &net = net, &opt = opt](const Tensor& x) {
      fabric.backward(net(x).sum());
      opt.step();
      opt.zero_grad();
    });
    for (int i = 0; i < 5; ++i) step(fabric.to_device(torch::ones({2, 4})));
    EXPECT_EQ(step.compiler()->counts().captured, 0);
  });
  EXPECT_NE(lines.find("[compile] step runs eagerly: the host waits for the device"), std::string::npos) << lines;
  EXPECT_NE(lines.find("unit gate (Waiting)"), std::string::npos) << lines;
}

TEST_F(CompileGpu, TakesNoMoreMemoryThanEagerSteps) {
  const auto reserved = [](bool compile) {
    Fabric fabric({.accelerator = "cuda", .devices = 1, .compile = compile ? CompileMode("graph") : CompileMode()});
    fabric.launch();
    torch::nn::Sequential model;
    for (int i = 0; i < 6; ++i) {
      model->push_back(torch::nn::Linear(2048, 2048));
      model->push_back(torch::nn::GELU());
    }
    auto [net, opt] = fabric.setup(model, optim::AdamW(model->parameters()));
    auto step = fabric.compile([&, &net = net, &opt = opt](const Tensor& x) {
      auto loss = net(x).pow(2).mean();
      fabric.backward(loss);
      opt.step();
      opt.zero_grad();
      return loss;
    });
    const auto& accelerator = fabric.accelerator();
    accelerator.empty_cache(fabric.device());
    accelerator.reset_peak_memory(fabric.device());
    for (int i = 0; i < 8; ++i) step(torch::ones({16384, 2048}, at::kCUDA));  // 128 MiB
    return accelerator.memory(fabric.device()).peak_reserved;
  };
  const auto eager = reserved(false), compiled = reserved(true);
  EXPECT_GT(eager, int64_t{1} << 30);
  // The input of the graph, and a workspace of cuBLAS for each of two threads.
  EXPECT_LE(compiled, eager + (int64_t{128 + 2 * 32 + 32} << 20)) << eager;
}

TEST_F(CompileGpu, ANonFiniteNormIsAnErrorAtALaterStep) {
  Training training{.clip = 1, .overflow_at = 10};
  training.steps = 40;
  const auto error = testing::error_of([&] {
    Training slow = training;
    slow.schedule = [](Optimizer&, int) { torch::cuda::synchronize(); };
    train(slow, true);
  });
  EXPECT_NE(error.find("the norm of the gradients was non-finite in an earlier step"), std::string::npos) << error;
}

TEST_F(CompileGpu, LoadedStateCountsAndGraphsStayRight) {
  const auto run = [](bool compile) {
    torch::manual_seed(2);
    Fabric fabric({.accelerator = "cuda", .devices = 1, .compile = compile ? CompileMode("graph") : CompileMode()});
    fabric.launch();
    Net model;
    auto [net, opt] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-2}));
    auto step = fabric.compile([&, &net = net, &opt = opt](const Tensor& x) {
      auto loss = net(x).pow(2).mean();
      fabric.backward(loss);
      opt.step();
      opt.zero_grad();
      return loss;
    });
    const auto x = fabric.to_device(torch::ones({8, 16}).cumsum(0));
    StateDict saved;
    for (int i = 0; i < 20; ++i) {
      step(x);
      if (i == 6) saved = detail::copy_of_state(opt.state_dict()).to_dict();
      if (i == 11) opt.load_state_dict(saved);
    }
    return model->first->weight.detach().cpu();
  };
  EXPECT_TRUE(torch::equal(run(false), run(true)));
}

}  // namespace
}  // namespace levin
