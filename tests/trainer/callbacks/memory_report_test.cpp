// MemoryReport: what a step holds, measured in a run and beside what was predicted.
#include "levin/trainer/callbacks/memory_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/files.h"
#include "levin/data/loader.h"
#include "levin/devices/memory_counter.h"
#include "levin/io/images/image.h"
#include "levin/models/vit.h"
#include "levin/nn/functional.h"
#include "levin/nn/layers.h"
#include "levin/optim/optim.h"
#include "levin/testing/capture.h"
#include "levin/testing/probe.h"
#include "levin/trainer/trainer.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

constexpr int64_t kWidth = 320, kRows = 64, kDepth = 4;

struct WideImpl : torch::nn::Module {
  WideImpl() {
    for (int64_t i = 0; i < kDepth; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(kWidth, kWidth)));
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = torch::relu(layer(x));
    return x;
  }
  std::vector<nn::Linear> layers;
};
LEVIN_MODULE(Wide);

constexpr int64_t kParameters = kDepth * (kWidth * kWidth + kWidth);

TrainingStep wide_step() {
  Wide net;
  return {net.ptr(), [net](const Batch& batch) mutable { return net(batch["x"]); },
          [](const Tensor& logits, const Batch& batch) { return cross_entropy(logits, batch["label"]); }};
}

struct WideModule : TrainModule {
  WideModule() : net(register_module("net", Wide())) {}
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    return cross_entropy(net(batch["x"]), batch["label"]);
  }
  Optimizers configure_optimizers() override { return optim::AdamW(parameters(), {.lr = 1e-3}); }
  Wide net;
};
struct Predicted : WideModule, PredictsMemory {
  TrainingStep make_step() const override { return wide_step(); }
};

DataLoader<Batch> rows(int64_t batches) {
  return make_loader(TensorDataset({{"x", torch::zeros({batches * kRows, kWidth})},
                                    {"label", torch::zeros({batches * kRows}, at::kLong)}}),
                     {.batch_size = kRows});
}

double ratio(int64_t measured, int64_t predicted) {
  return static_cast<double>(measured) / static_cast<double>(predicted);
}

/// oneDNN takes scratch of its own, on each machine another amount.
class MemoryReportTest : public ::testing::Test {
 protected:
  void SetUp() override { at::globalContext().setUserEnabledMkldnn(false); }
  void TearDown() override { at::globalContext().setUserEnabledMkldnn(true); }

  std::shared_ptr<MemoryReport> measure(TrainModule& module, MemoryReportOptions options, int64_t batches = 4,
                                        int64_t accumulate = 1) {
    const auto report = std::make_shared<MemoryReport>(std::move(options));
    auto asked = quiet({report}, 1, folder.path());
    asked.accumulate_grad_batches = accumulate;
    printed = testing::captured_stdout([&] { Trainer(asked).fit(module, rows(batches)); });
    return report;
  }

  TemporaryFolder folder;
  std::string printed;
};

TEST_F(MemoryReportTest, MeasuresAStepByKind) {
  WideModule module;
  auto* before = c10::GetAllocator(at::kCPU);
  const auto report = measure(module, {});
  EXPECT_EQ(c10::GetAllocator(at::kCPU), before);
  ASSERT_TRUE(report->measured());
  EXPECT_FALSE(report->predicted());
  const auto& found = *report->measured();
  EXPECT_EQ(found.parameters, 4 * kParameters);
  EXPECT_EQ(found.gradients, 4 * kParameters);
  EXPECT_EQ(found.optimizer, 8 * kParameters + 4 * 2 * kDepth);
  // What each relu gives, logarithms of probabilities, the loss and the sum of its weights.
  EXPECT_EQ(found.activations, (kDepth + 1) * 4 * kRows * kWidth + 4 + 4);
  // Gradients of the step before live until forward has ended: everything is there at once.
  const auto all = found.parameters + found.gradients + found.optimizer + found.activations;
  EXPECT_GE(found.device_peak, all);
  EXPECT_LE(found.device_peak, all + found.temporary);
  EXPECT_EQ(found.peak_part, StepPart::kForward);
  EXPECT_EQ(found.host, 0);
  EXPECT_EQ(found.timeline.points.at(1).unit, "net.layer0");
  EXPECT_EQ(found.timeline.peak(), found.device_peak);
  EXPECT_THAT(printed, HasSubstr("|  memory of step 2"));
  EXPECT_THAT(printed, HasSubstr("|  activations         \t|  410 kB         \t|\n"));
  EXPECT_THAT(printed, ::testing::Not(HasSubstr("predicted")));
}

TEST_F(MemoryReportTest, StandsBesideThePrediction) {
  for (const bool own_counter : {true, false}) {
    MemoryCounter counter;
    Predicted module;
    const auto report = measure(module, {.counter = own_counter ? nullptr : &counter});
    ASSERT_TRUE(report->measured() && report->predicted());
    const auto &found = *report->measured(), &foreseen = *report->predicted();
    EXPECT_EQ(found.parameters, foreseen.parameters);
    EXPECT_EQ(found.gradients, foreseen.gradients);
    EXPECT_EQ(found.optimizer, foreseen.optimizer);
    EXPECT_EQ(found.activations, foreseen.activations);
    EXPECT_NEAR(ratio(found.device_peak, foreseen.device_peak), 1, 0.02) << own_counter;
    EXPECT_NEAR(ratio(found.temporary, foreseen.temporary), 1, 0.3) << own_counter;
    EXPECT_EQ(found.peak_part, foreseen.peak_part);
    EXPECT_THAT(printed, HasSubstr("|  parameters          \t|  1.64 MB        \t|  1.64 MB        \t|  1.00"));
  }
}

TEST_F(MemoryReportTest, MeasuresAllBatchesOfAnOptimizerStep) {
  WideModule module;
  const auto report = measure(module, {.make_step = wide_step}, 6, /*accumulate=*/3);
  ASSERT_TRUE(report->measured() && report->predicted());
  const auto& found = *report->measured();
  EXPECT_EQ(found.activations, report->predicted()->activations + 4);  // the loss divided by three
  EXPECT_NEAR(ratio(found.device_peak, report->predicted()->device_peak), 1, 0.02);
  int64_t forwards = 0, steps = 0;
  for (const auto& point : found.timeline.points) {
    forwards += point.part == StepPart::kForward && point.unit.empty();
    steps += point.part == StepPart::kOptimizer && point.begins;
  }
  EXPECT_EQ(forwards, 3);
  EXPECT_EQ(steps, 1);
}

TEST_F(MemoryReportTest, MeasuresWhoeverStepsHimself) {
  struct Manual : WideModule {
    Manual() { automatic_optimization = false; }
    StepOutput training_step(const Batch& batch, const StepInfo& at) override {
      auto loss = WideModule::training_step(batch, at).loss;
      optimizer().zero_grad();
      manual_backward(loss);
      optimizer().step();
      return {};
    }
  };
  Manual module;
  const auto report = measure(module, {});
  ASSERT_TRUE(report->measured());
  EXPECT_EQ(report->measured()->activations, (kDepth + 1) * 4 * kRows * kWidth + 4 + 4);
  EXPECT_EQ(report->measured()->gradients, 4 * kParameters);
}

TEST_F(MemoryReportTest, GivesFiguresToLoggersAndAPictureToTheFolder) {
  WideModule module;
  const auto logger = std::make_shared<Rows>(folder.path() / "logs");
  const auto report = std::make_shared<MemoryReport>(MemoryReportOptions{.make_step = wide_step, .step = 3});
  auto asked = quiet({report}, 1);
  asked.logger = logger;
  Trainer(asked).fit(module, rows(4));
  const auto found = logger->with({"memory/"});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].first, 2);  // rows are counted from 0
  EXPECT_EQ(found[0].second.at("memory/peak"), static_cast<double>(report->measured()->device_peak));
  EXPECT_EQ(found[0].second.at("memory/predicted_peak"), static_cast<double>(report->predicted()->device_peak));
  EXPECT_EQ(found[0].second.at("memory/parameters"), 4.0 * kParameters);
  EXPECT_EQ(found[0].second.size(), 7u);
  const auto picture = read_image(folder.path() / "logs" / "memory.png");
  EXPECT_EQ(picture.sizes(), (std::vector<int64_t>{3, 880, 1720}));
  EXPECT_GT((picture != 255).sum().item<int64_t>(), 10'000);
  EXPECT_EQ(read_file(folder.path() / "logs" / "memory.csv"), report->measured()->timeline.csv());
}

TEST_F(MemoryReportTest, TakesAPredictionOfAnybody) {
  WideModule module;
  const auto report = measure(module, {.predicted = MemoryEstimate{.parameters = 8 * kParameters, .device_peak = 1}});
  EXPECT_THAT(printed, HasSubstr("|  parameters          \t|  3.29 MB        \t|  1.64 MB        \t|  0.50"));
}

TEST_F(MemoryReportTest, WorksWithoutAPredictionThatFails) {
  WideModule module;
  const auto report = measure(module, {.make_step = []() -> TrainingStep { throw Error("[net] no data"); }});
  EXPECT_TRUE(report->measured());
  EXPECT_FALSE(report->predicted());
}

TEST_F(MemoryReportTest, MeasuresTheOnlyStepOfAShortRun) {
  WideModule module;
  const auto report = measure(module, {.picture = false}, 1);
  ASSERT_TRUE(report->measured());
  EXPECT_EQ(report->measured()->gradients, 4 * kParameters);
  EXPECT_THAT(printed, HasSubstr("memory of step 1"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "memory.png"));
}

TEST_F(MemoryReportTest, RefusesInOneLine) {
  EXPECT_THAT(error_of([] { MemoryReport({.step = 0}); }), HasSubstr("step=0 must be at least 1"));
}

LEVIN_PROBE(memory_report_of_a_rank) {
  MemoryCounter counter;
  Predicted module;
  const auto report = std::make_shared<MemoryReport>(MemoryReportOptions{.picture = false, .counter = &counter});
  auto asked = quiet({report}, 1);
  asked.strategy = arguments.at(0);
  asked.devices = 2;
  Trainer trainer(asked);
  trainer.fit(module, rows(8));
  ASSERT_EQ(report->measured().has_value(), trainer.is_global_zero());
  if (!report->measured()) return;
  const auto &found = *report->measured(), &foreseen = *report->predicted();
  EXPECT_NEAR(ratio(found.parameters, foreseen.parameters), 1, 0.05);
  EXPECT_NEAR(ratio(found.gradients, foreseen.gradients), 1, 0.05);
  EXPECT_NEAR(ratio(found.optimizer, foreseen.optimizer), 1, 0.05);
  EXPECT_NEAR(ratio(found.activations, foreseen.activations), 1, 0.05);
  EXPECT_NEAR(ratio(found.device_peak, foreseen.device_peak), 1, 0.25);
}

TEST_F(MemoryReportTest, IsOfWhatOneRankHolds) {
  for (const auto* strategy : {"ddp", "fsdp", "deepspeed_stage_2"}) {
    EXPECT_EQ(testing::launch_probe("memory_report_of_a_rank", 2, {strategy}), 0) << strategy;
  }
}

}  // namespace
}  // namespace levin::tuning_test
