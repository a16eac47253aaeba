// Real faults on a real device: recorded by Levin, named by the report.
#include <chrono>
#include <optional>
#include <thread>

#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/devices/accelerator.h"
#include "levin/fabric/fabric.h"
#include "levin/profilers/profile.h"
#include "levin/report/report.h"
#include "levin/testing/gpu.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct ReportGpu : testing::GpuTest {
  testing::TemporaryFolder folder;
  std::optional<Fabric> fabric;

  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) fabric.emplace(FabricOptions{.accelerator = "cuda", .devices = 1}).launch();
  }

  report::TraceReport record(const std::function<void()>& step) {
    for (int i = 0; i < 3; ++i) step();
    auto profile = fabric->profile({.schedule = ProfilerSchedule{.wait = 1, .warmup = 1, .active = 4},
                                    .record_shapes = true,
                                    .profile_memory = true,
                                    .dirpath = folder.path()});
    profile->start();
    for (int i = 0; i < 7; ++i) {
      step();
      profile->step();
    }
    profile->stop();
    auto report = report::make_report({folder.path()});
    EXPECT_EQ(report.traces.size(), 1u);
    return std::move(report.traces.at(0));
  }

  static std::vector<std::string> ids_of(const report::TraceReport& report) {
    std::vector<std::string> ids;
    for (const auto& row : report.recommendations) ids.push_back(row.id);
    return ids;
  }

  Tensor matrix(int64_t n, at::ScalarType type) {
    return at::randn({n, n}, at::TensorOptions(fabric->device()).dtype(type));
  }
};

// About ten milliseconds of products on tensor cores; the host is far ahead.
TEST_F(ReportGpu, CleanProgram) {
  const auto x = matrix(8192, at::kBFloat16);
  const auto report = record([&] {
    for (int i = 0; i < 6; ++i) at::matmul(x, x);
  });
  EXPECT_THAT(ids_of(report), IsEmpty());
  ASSERT_EQ(report.gpus.size(), 1u);
  EXPECT_GT(report.gpus[0].utilization, 0.8);
  ASSERT_TRUE(report.gpus[0].occupancy);
  ASSERT_TRUE(report.gpus[0].sm_efficiency);
  ASSERT_TRUE(report.gpus[0].tensor_core_time);
  EXPECT_GT(*report.gpus[0].tensor_core_time, 0.9) << report.events.name(report.kernels.at(0).name);
  EXPECT_GE(report.steps.steps.size(), 3u);
  // Both need a device that the table of peaks has.
  if (report.mfu) {
    EXPECT_GT(report.mfu->achieved_tflops(), 100);
    EXPECT_LT(report.mfu->achieved_tflops(), report.mfu->peak_tflops);
    ASSERT_TRUE(report.roofline);
    EXPECT_TRUE(report.roofline->points.at(0).is_compute_bound);
  }
}

TEST_F(ReportGpu, SyncInTheStep) {
  const auto x = matrix(8192, at::kBFloat16);
  const auto report = record([&] {
    for (int i = 0; i < 6; ++i) {
      at::matmul(x, x).sum().item<float>();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  EXPECT_THAT(ids_of(report), Contains("sync_in_step"));
  EXPECT_GT(report.idle[report::IdleCause::kSync], 0);
}

TEST_F(ReportGpu, TensorsOfTheCpu) {
  const auto x = matrix(4096, at::kBFloat16);
  const auto report = record([&] {
    const auto made = at::randn({2048, 2048}).to(fabric->device());
    for (int i = 0; i < 6; ++i) at::matmul(x, x);
  });
  EXPECT_THAT(ids_of(report), Contains("cpu_tensors"));
}

TEST_F(ReportGpu, ProductsInFloat) {
  const auto x = matrix(4096, at::kFloat);
  const auto report = record([&] {
    for (int i = 0; i < 6; ++i) at::matmul(x, x);
  });
  EXPECT_THAT(ids_of(report), Contains("fp32_matmul")) << report.events.name(report.kernels.at(0).name);
}

TEST_F(ReportGpu, TinyBatches) {
  const auto x = matrix(64, at::kBFloat16);
  const auto report = record([&] {
    for (int i = 0; i < 200; ++i) {
      at::matmul(x, x);
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
  });
  EXPECT_THAT(ids_of(report), Contains("tiny_batch"));
}

TEST_F(ReportGpu, MemoryThatGrows) {
  const auto x = matrix(8192, at::kBFloat16);
  std::vector<Tensor> kept;
  const auto report = record([&] {
    for (int i = 0; i < 4; ++i) at::matmul(x, x);
    kept.push_back(at::matmul(x, x));
  });
  EXPECT_THAT(ids_of(report), Contains("memory_grows"));
}

}  // namespace
}  // namespace levin
