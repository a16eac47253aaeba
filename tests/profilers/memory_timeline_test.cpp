// The memory of a step from point to point, measured and predicted.
#include "levin/profilers/memory_timeline.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/files.h"
#include "levin/devices/memory_counter.h"
#include "levin/memory/estimate.h"
#include "levin/nn/functional.h"
#include "levin/nn/layers.h"
#include "levin/optim/adam.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct TowerImpl : torch::nn::Module {
  TowerImpl() {
    for (int i = 0; i < 3; ++i) floors.push_back(register_module("floor" + std::to_string(i), nn::Linear(200, 200)));
    head = register_module("head", nn::LayerNorm(nn::LayerNormOptions({200})));
  }
  Tensor forward(Tensor x) {
    for (auto& each : floors) x = torch::gelu(each(x));
    return head(x);
  }
  std::vector<nn::Linear> floors;
  nn::LayerNorm head = nullptr;
};
LEVIN_MODULE(Tower);

Batch rows(c10::Device device) {
  return {{"x", torch::ones({1000, 200}, device)}, {"y", torch::ones({1000}, torch::dtype(at::kLong).device(device))}};
}

TEST(MemoryTimeline, IsMeasuredAndPredictedAtTheSamePoints) {
  MemoryCounter counter;
  Tower model;
  const auto batch = rows(at::kCPU);
  optim::Adam optimizer(model->parameters());
  MemoryRecorder recorder(*model, at::kCPU, {.counter = &counter});
  for (int step = 0; step < 2; ++step) {
    recorder.begin_step();
    const auto loss = cross_entropy(model(batch["x"]), batch["y"]);
    recorder.begin_backward();
    loss.backward();
    recorder.begin_optimizer();
    optimizer.step();
    recorder.end_step();
    optimizer.zero_grad();
  }
  const auto estimate =
      estimate_memory([] { return Tower(); }, [](auto& net, const Batch& given) { return net(given["x"]); },
                      [](const Tensor& y, const Batch& given) { return cross_entropy(y, given["y"]); }, rows(at::kMeta),
                      {.device = at::kCPU});
  const auto& measured = recorder.timeline().points;
  const auto& predicted = estimate.timeline.points;
  // Forward, backward, optimizer and the end; three floors begin and end in both passes.
  ASSERT_EQ(measured.size(), 4 + 3 * 4);
  ASSERT_EQ(predicted.size(), measured.size());
  for (size_t i = 0; i < measured.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(measured[i].unit, predicted[i].unit);
    EXPECT_EQ(measured[i].part, predicted[i].part);
    EXPECT_EQ(measured[i].begins, predicted[i].begins);
    EXPECT_NEAR(static_cast<double>(measured[i].bytes), static_cast<double>(predicted[i].bytes),
                0.02 * static_cast<double>(recorder.timeline().peak()));
    EXPECT_NEAR(static_cast<double>(measured[i].peak), static_cast<double>(predicted[i].peak),
                0.02 * static_cast<double>(recorder.timeline().peak()));
  }
  EXPECT_EQ(measured[1].unit, "floor0");
  EXPECT_EQ(measured[8].unit, "floor2");  // backward begins with the last one
  EXPECT_EQ(estimate.timeline.highest()->part, estimate.peak_part);
  EXPECT_EQ(estimate.timeline.peak(), estimate.device_peak);

  const testing::TemporaryFolder folder;
  write_memory_timeline(folder / "memory", recorder.timeline(), &estimate.timeline);
  EXPECT_THAT(read_file(folder / "memory.csv"),
              StartsWith("part,unit,event,bytes,peak\nforward,,begin," + std::to_string(measured[0].bytes)));
  EXPECT_THAT(read_file(folder / "memory_predicted.csv"), HasSubstr("backward,floor1,begin,"));
  EXPECT_THAT(
      read_file(folder / "memory.svg"),
      ::testing::AllOf(HasSubstr("measured, peak"), HasSubstr("predicted, peak"), HasSubstr(">optimizer step</text>")));
}

TEST(MemoryTimeline, WithoutARunIsEmpty) {
  const MemoryTimeline none;
  EXPECT_EQ(none.peak(), 0);
  EXPECT_EQ(none.highest(), nullptr);
  EXPECT_EQ(none.csv(), "part,unit,event,bytes,peak\n");
  EXPECT_THAT(to_svg(none), HasSubstr("</svg>"));
}

TEST(MemoryTimeline, GraphsThatOutliveTheRecorderDoNoHarm) {
  Tower model;
  Tensor loss;
  {
    MemoryRecorder recorder(*model, at::kCPU);
    recorder.begin_step();
    loss = model(torch::ones({2, 200})).sum();
  }
  EXPECT_NO_THROW(loss.backward());
}

TEST(MemoryTimeline, FindsTheBlocksThatRepeat) {
  Tower model;
  const auto units = detail::repeated_units(*model);
  ASSERT_EQ(units.size(), 3u);
  EXPECT_EQ(units[2].name, "floor2");
  EXPECT_TRUE(detail::repeated_units(*nn::Linear(2, 2).ptr()).empty());
}

}  // namespace
}  // namespace levin
