// The Trainer with steps from CUDA graphs against the same run with eager ones: weights and metrics bit by bit.
#include <filesystem>

#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/testing/capture.h"
#include "levin/testing/gpu.h"
#include "levin/testing/scoped_variable.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

struct Net : TrainModule {
  Net()
      : first(register_module("first", torch::nn::Linear(16, 64))),
        norm(register_module("norm", torch::nn::BatchNorm1d(64))),
        drop(register_module("drop", torch::nn::Dropout(0.2))),
        last(register_module("last", torch::nn::Linear(64, 1))) {}
  Tensor loss_of(const Tensor& x) {
    return last(drop(torch::relu(norm(first(x))))).squeeze(1).sub(x.sum(1)).pow(2).mean();
  }
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    ++calls;
    const auto loss = loss_of(batch["x"]);
    log("loss", loss, {.on_step = true, .on_epoch = true});
    log("double", loss * 2);
    return loss;
  }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override {
    ++validation_calls;
    log("val_loss", loss_of(batch["x"]));
    return {};
  }
  StepOutput predict_step(const Batch& batch, const StepInfo&) override { return loss_of(batch["x"]); }
  Optimizers configure_optimizers() override {
    optim::AdamW opt(parameters(), {.lr = 1e-2});
    return {opt, {.scheduler = optim::CosineAnnealingLR(opt, {.t_max = 50}), .interval = "step"}};
  }

  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear last;
  int calls = 0, validation_calls = 0;
};

DataLoader<Batch> loader(int64_t samples, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return make_loader(TensorDataset({{"x", at::randn({samples, 16}, generator, at::kFloat)}}),
                     {.batch_size = 16, .shuffle = true});
}

TrainerOptions options(bool compile) {
  return {.accelerator = "cuda",
          .devices = 1,
          .logger = false,
          .max_epochs = 4,
          .log_every_n_steps = 1,
          .enable_checkpointing = false,
          .enable_progress_bar = false,
          .enable_model_summary = false,
          .compile = compile ? CompileMode("graph") : CompileMode()};
}

struct Outcome {
  std::vector<Tensor> weights;
  std::map<std::string, double> metrics;
  std::vector<float> losses;
  int calls = 0, validation_calls = 0;
};

template <class Module = Net>
Outcome fit(TrainerOptions asked, FitOptions how = {}) {
  torch::manual_seed(7);
  Module net;
  Outcome outcome;
  std::vector<Tensor> losses;
  asked.callbacks.push_back(
      LambdaCallback({.on_train_batch_end = [&](TrainerContext&, const StepOutput& output, const AnyBatch&, int64_t) {
        losses.push_back(output.loss.detach());
      }}));
  Trainer trainer(asked);
  trainer.fit(net, loader(250, 1), loader(70, 2), how);  // the last batches are smaller
  for (const auto& p : net.parameters()) outcome.weights.push_back(p.detach().cpu());
  for (const auto& b : net.buffers()) outcome.weights.push_back(b.detach().cpu());
  for (const auto& [name, value] : trainer.callback_metrics()) outcome.metrics[name] = *trainer.metric(name);
  for (const auto& loss : losses) outcome.losses.push_back(loss.item<float>());
  outcome.calls = net.calls;
  outcome.validation_calls = net.validation_calls;
  return outcome;
}

void expect_equal(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.metrics, b.metrics);
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(a.weights[i].equal(b.weights[i])) << i;
}

class TrainerCompileGpu : public levin::testing::GpuTest {};

TEST_F(TrainerCompileGpu, EqualsEagerInEveryPrecision) {
  for (const char* precision : {"32-true", "16-mixed", "bf16-mixed"}) {
    auto eager = options(false), compiled = options(true);
    eager.precision = compiled.precision = precision;
    eager.gradient_clip_val = compiled.gradient_clip_val = 0.5;
    const auto a = fit(eager), b = fit(compiled);
    expect_equal(a, b);
    EXPECT_EQ(a.calls, 64);
    // Two eager calls and one capture of each size.
    EXPECT_EQ(b.calls, 6) << precision;
    EXPECT_LT(b.validation_calls, a.validation_calls / 2) << precision;
  }
}

TEST_F(TrainerCompileGpu, Accumulation) {
  auto eager = options(false), compiled = options(true);
  eager.accumulate_grad_batches = compiled.accumulate_grad_batches = 3;
  const auto a = fit(eager), b = fit(compiled);
  expect_equal(a, b);
  EXPECT_LT(b.calls, a.calls / 2);
}

/// A rank that communicates with itself over NCCL.
void expect_same_under(std::initializer_list<const char*> strategies) {
  for (const char* strategy : strategies)
    for (const int accumulate : {1, 3})
      for (const char* precision : {"32-true", "16-mixed"}) {
        SCOPED_TRACE(std::string(strategy) + " " + precision + " " + std::to_string(accumulate));
        auto eager = options(false), compiled = options(true);
        for (auto* each : {&eager, &compiled}) {
          each->strategy = strategy;
          each->precision = precision;
          each->accumulate_grad_batches = accumulate;
          each->gradient_clip_val = 0.5;
        }
        const auto a = fit(eager), b = fit(compiled);
        expect_equal(a, b);
        EXPECT_LT(b.calls, a.calls / 2);
        EXPECT_LT(b.validation_calls, a.validation_calls / 2);
      }
}

TEST_F(TrainerCompileGpu, Strategies) {
  const testing::ScopedVariable with_itself("LEVIN_TEST_GROUP_OF_ONE", "1");
  expect_same_under({"fsdp", "deepspeed_stage_2"});
}

TEST_F(TrainerCompileGpu, Ddp) {
  const testing::ScopedVariable with_itself("LEVIN_TEST_GROUP_OF_ONE", "1");
  expect_same_under({"ddp"});
}

void expect_exact_resume(const StrategyChoice& strategy) {
  const testing::TemporaryFolder folder;
  const auto path = (folder.path() / "at_21.ckpt").string();
  auto whole = options(true), resumed = options(true);
  whole.strategy = resumed.strategy = strategy;
  whole.callbacks = {
      LambdaCallback({.on_train_batch_end = [&](TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) {
        if (run.global_step() == 21) run.save_checkpoint(path);
      }})};
  const auto a = fit(whole), b = fit(resumed, {.ckpt_path = path});
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(a.weights[i].equal(b.weights[i])) << i;
}

TEST_F(TrainerCompileGpu, ResumeIsExact) {
  expect_exact_resume("auto");
}

TEST_F(TrainerCompileGpu, ResumeUnderDdpIsExact) {
  const testing::ScopedVariable with_itself("LEVIN_TEST_GROUP_OF_ONE", "1");
  expect_exact_resume("ddp");
}

struct Syncs : Net {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    auto output = Net::training_step(batch, at);
    last_loss = output.loss.item<float>();
    return output;
  }
  float last_loss = 0;
};
struct LogsNumbers : Net {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    log("lr", optimizers().front().lr());
    return Net::training_step(batch, at);
  }
};
struct AsksForStep : Net {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    auto output = Net::training_step(batch, at);
    return global_step() % 2 == 0 ? StepOutput(output.loss * 2) : output;
  }
};
struct Hooked : Net {
  void on_after_backward() override { ++backwards; }
  int backwards = 0;
};

template <class Module>
void expect_eager(const std::string& reason) {
  const auto a = fit<Module>(options(false));
  Outcome b;
  const auto lines = testing::captured_stderr([&] { b = fit<Module>(options(true)); });
  expect_equal(a, b);
  EXPECT_NE(lines.find("[compile] training_step runs eagerly: " + reason), std::string::npos) << lines;
}

TEST_F(TrainerCompileGpu, WhatCannotBeCapturedRunsEagerlyWithTheReason) {
  expect_eager<Syncs>("the host waits for the device");
  expect_eager<LogsNumbers>("\"lr\" is logged as a number of the host");
  expect_eager<AsksForStep>("it asks for global_step()");
  expect_eager<Hooked>("");
}

TEST_F(TrainerCompileGpu, EvaluationAndPrediction) {
  torch::manual_seed(3);
  Net net;
  std::vector<std::map<std::string, double>> metrics;
  std::vector<std::vector<Tensor>> predictions;
  for (const bool compile : {false, true}) {
    Trainer trainer(options(compile));
    metrics.push_back(trainer.validate(net, loader(200, 4), {.verbose = false}).front());
    auto& kept = predictions.emplace_back();
    const auto plain = make_loader(TensorDataset({{"x", torch::ones({160, 16}).cumsum(0) / 100}}), {.batch_size = 16});
    const auto outputs = trainer.predict(net, plain);
    for (const auto& output : outputs.front()) kept.push_back(output.loss.cpu());
  }
  EXPECT_EQ(metrics[0], metrics[1]);
  ASSERT_EQ(predictions[0].size(), predictions[1].size());
  for (size_t i = 0; i < predictions[0].size(); ++i) EXPECT_TRUE(predictions[0][i].equal(predictions[1][i])) << i;
}

}  // namespace
}  // namespace levin
