// Cases whose numbers come from the TensorBoard plugin, or are corrected where it is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/report/report.h"
#include "levin/report/trace/trace_reader.h"
#include "tests/report/trace_text.h"

namespace levin::report {
namespace {

using report_test::base_trace;
using report_test::TraceText;
using ::testing::ElementsAre;

TraceReport report_of(const TraceText& trace) {
  return report_trace(read_trace_text(trace.text()));
}

// In microseconds.
std::vector<double> parts_of(const TraceReport& report) {
  std::vector<double> parts;
  for (const double part : report.steps.average) parts.push_back(part / 1e3);
  return parts;
}

std::vector<std::string> ids_of(const TraceReport& report) {
  std::vector<std::string> ids;
  for (const auto& row : report.recommendations) ids.push_back(row.id);
  return ids;
}

const OperatorRow& row_of(const TraceReport& report, const std::string& name) {
  for (const auto& row : report.operators) {
    if (report.events.name(row.name) == name) return row;
  }
  throw std::runtime_error("no operator " + name);
}

// Device self and total, host self and total.
std::vector<Ns> times_of(const TraceReport& report, const std::string& name) {
  const auto& row = row_of(report, name);
  return {row.device_self / 1000, row.device_total / 1000, row.host_self / 1000, row.host_total / 1000};
}

TEST(Conformance, StepIsDividedByPriority) {
  const auto report = report_of(base_trace());
  ASSERT_EQ(report.steps.steps.size(), 1u);
  EXPECT_EQ(report.steps.steps[0].start, 1'000'000);
  EXPECT_EQ(report.steps.steps[0].end, 2'300'000);
  EXPECT_THAT(parts_of(report), ElementsAre(700, 100, 0, 0, 70, 200, 80, 150));
  EXPECT_EQ(report.steps.average_total, 1'300'000);
  EXPECT_THAT(ids_of(report), ElementsAre("slow_loader"));
  EXPECT_THAT(report.recommendations[0].evidence, ::testing::HasSubstr("15.4 %"));
  EXPECT_NEAR(*report.recommendations[0].cost_ms, 0.2, 1e-9);
}

TEST(Conformance, GpuSummaryAndOperators) {
  const auto report = report_of(base_trace());
  ASSERT_EQ(report.gpus.size(), 1u);
  const auto& gpu = report.gpus[0];
  EXPECT_NEAR(100 * gpu.utilization, 53.85, 0.005);
  EXPECT_NEAR(100 * *gpu.sm_efficiency, 42.31, 0.005);
  EXPECT_NEAR(100 * *gpu.occupancy, 32.86, 0.005);
  EXPECT_NEAR(100 * *gpu.tensor_core_time, 57.14, 0.005);
  const auto& times = report.tensor_cores;
  EXPECT_NEAR(100.0 * static_cast<double>(times.of_eligible) / static_cast<double>(times.of_operators), 57.14, 0.005);
  EXPECT_THAT(times_of(report, "aten::addmm"), ElementsAre(400, 400, 210, 260));
  EXPECT_THAT(times_of(report, "aten::linear"), ElementsAre(0, 400, 40, 300));
  EXPECT_THAT(times_of(report, "aten::copy_"), ElementsAre(150, 150, 50, 150));
  EXPECT_THAT(times_of(report, "aten::relu"), ElementsAre(300, 300, 30, 50));
  const auto& linear = row_of(report, "aten::linear");
  EXPECT_EQ(linear.tensor_core_total, linear.device_total);
  EXPECT_TRUE(linear.could_use_tensor_cores);
}

// The plugin gives the step to the copy, the call and the operator once more.
TEST(Conformance, KernelOverTheWholeStepLeavesNothing) {
  TraceText trace;
  trace.annotation("ProfilerStep#1", 1000, 1000, 1)
      .op("aten::mm", 1000, 100, 2)
      .call("cudaLaunchKernel", 1000, 10, 2, 1)
      .kernel("gemm", 1000, 1000, 2, 1)
      .device("gpu_memcpy", "Memcpy DtoD", 1200, 100, 2, 1);
  EXPECT_THAT(parts_of(report_of(trace)), ElementsAre(1000, 0, 0, 0, 0, 0, 0, 0));
}

TraceText collective_trace() {
  TraceText trace;
  trace.annotation("ProfilerStep#1", 0, 1000, 1)
      .op("aten::mm", 50, 50, 2)
      .call("cudaLaunchKernel", 60, 10, 2, 1)
      .op("nccl:all_reduce", 100, 50, 3)
      .call("cudaLaunchKernel", 110, 10, 3, 2)
      .kernel("gemm", 100, 400, 2, 1)
      .kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 400, 300, 3, 2);
  return trace;
}

TEST(Conformance, CommunicationAndOverlap) {
  const auto report = report_of(collective_trace());
  EXPECT_THAT(parts_of(report), ElementsAre(400, 0, 0, 200, 10, 0, 40, 350));
  const auto& overlap = report.steps.overlaps[0];
  EXPECT_EQ(overlap.computation, 400'000);
  EXPECT_EQ(overlap.communication, 350'000);
  EXPECT_EQ(overlap.overlap, 150'000);
  EXPECT_EQ(overlap.other, 400'000);
  EXPECT_THAT(ids_of(report), ElementsAre("communication"));
  EXPECT_THAT(report.recommendations[0].evidence, ::testing::HasSubstr("20.0 %"));
}

// The plugin knows five collectives by their host spans; kernels of newer traces have other ids.
TEST(Conformance, CollectivesAreKnownByTheNamesOfKernels) {
  TraceText trace;
  trace.annotation("ProfilerStep#1", 0, 1000, 1)
      .op("c10d::alltoall_", 0, 50, 2)
      .call("cudaLaunchKernelExC", 10, 10, 2, 1)
      .kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 100, 300, 99, 1);
  EXPECT_THAT(parts_of(report_of(trace)), ElementsAre(0, 0, 0, 300, 10, 0, 40, 650));
}

TEST(Conformance, KernelWithoutALaunch) {
  auto trace = base_trace();
  trace.kernel("orphan", 1750, 100, 77, 99);
  const auto report = report_of(trace);
  EXPECT_EQ(parts_of(report)[0], 800);
  EXPECT_EQ(parts_of(report)[1], 50);
  EXPECT_NEAR(100 * report.gpus[0].utilization, 61.54, 0.005);
  EXPECT_NEAR(100 * *report.gpus[0].tensor_core_time, 57.14, 0.005);
  EXPECT_EQ(report.tensor_cores.all_used * 2, report.tensor_cores.all);
  bool found = false;
  for (const auto& row : report.kernels_by_properties) {
    if (report.events.name(row.name) != "orphan") continue;
    found = true;
    EXPECT_EQ(row.operator_name, kNone);
  }
  EXPECT_TRUE(found);
  EXPECT_THAT(to_json({.title = "", .traces = {}, .distributed = {}, .runs = {}}),
              ::testing::HasSubstr("\"schema\":1"));
}

// cuLaunchKernel of Triton and cuBLAS is a runtime call, and its kernels belong to their operators.
TEST(Conformance, DriverCallsLaunchToo) {
  TraceText trace;
  trace.annotation("ProfilerStep#1", 0, 1000, 1)
      .op("aten::mm", 0, 100, 2)
      .call("cuLaunchKernelEx", 10, 20, 2, 1, "cuda_driver")
      .kernel("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", 100, 300, 2, 1);
  const auto report = report_of(trace);
  EXPECT_THAT(parts_of(report), ElementsAre(300, 0, 0, 0, 20, 0, 80, 600));
  EXPECT_EQ(row_of(report, "aten::mm").device_self, 300'000);
  // Hopper's names are unknown to the plugin.
  EXPECT_EQ(report.tensor_cores.of_operators_used, 300'000);
  EXPECT_EQ(report.tensor_cores.of_operators_used_compat, 0);
}

TEST(Conformance, StepsOfTheDeviceAreNoSteps) {
  auto trace = base_trace();
  trace.span("gpu_user_annotation", "ProfilerStep#1", 1300, 1000, 7, "", "0");
  const auto report = report_of(trace);
  EXPECT_EQ(report.steps.steps.size(), 1u);
  EXPECT_THAT(parts_of(report), ElementsAre(700, 100, 0, 0, 70, 200, 80, 150));
}

TEST(Conformance, SpansOfOneWorkerAreNumberedByTime) {
  EXPECT_EQ(parse_trace_name("node_12.1623143566756.pt.trace.json.gz").worker, "node_12");
  EXPECT_EQ(parse_trace_name("node_12.1623143566756.pt.trace.json.gz").time, "1623143566756");
  EXPECT_EQ(parse_trace_name("my.host_7.pt.trace.json").worker, "my.host_7");
  EXPECT_EQ(parse_trace_name("my.host_7.pt.trace.json").time, "");
}

// A step begins where the device work before it ended; the tail that was cut off is dropped.
TEST(Conformance, StepsFollowTheDevice) {
  TraceText trace;
  for (int i = 0; i < 4; ++i) {
    const double start = 1000 * i;
    trace.annotation("ProfilerStep#" + std::to_string(i), start, 1000, 10 * i + 1)
        .op("aten::mm", start + 100, 100, 10 * i + 2)
        .call("cudaLaunchKernel", start + 110, 10, 10 * i + 2, 100 + i);
    if (i < 3) trace.kernel("gemm", start + 300, 900, 10 * i + 2, 100 + i);
  }
  const auto report = report_of(trace);
  ASSERT_EQ(report.steps.steps.size(), 3u);
  EXPECT_EQ(report.steps.dropped, 1u);
  EXPECT_EQ(report.steps.steps[0].end, 1'200'000);
  EXPECT_EQ(report.steps.steps[1].start, 1'200'000);
  EXPECT_EQ(report.steps.steps[2].end, 3'200'000);
}

TEST(Conformance, WithoutStepsThereIsOne) {
  TraceText trace;
  trace.op("aten::add", 100, 50, 1).op("aten::mul", 200, 100, 2);
  const auto report = report_of(trace);
  ASSERT_EQ(report.steps.steps.size(), 1u);
  EXPECT_EQ(report.steps.steps[0].name, "0");
  EXPECT_THAT(parts_of(report), ElementsAre(0, 0, 0, 0, 0, 0, 150, 50));
}

// A trace of the device alone breaks the plugin's overview.
TEST(Conformance, TraceOfTheDeviceAlone) {
  TraceText trace;
  trace.kernel("gemm", 100, 300, 1, 1).kernel("gemm", 500, 100, 2, 2);
  const auto report = report_of(trace);
  EXPECT_THAT(parts_of(report), ElementsAre(400, 0, 0, 0, 0, 0, 0, 100));
  EXPECT_NEAR(report.gpus[0].utilization, 0.8, 1e-9);
}

TEST(Conformance, LoneChildOfTheSameNameIsFolded) {
  TraceText trace;
  trace.annotation("ProfilerStep#1", 0, 1000, 1)
      .op("aten::relu", 100, 100, 2)
      .op("aten::relu", 110, 80, 3)
      .op("aten::clamp", 120, 40, 4);
  const auto report = report_of(trace);
  EXPECT_EQ(row_of(report, "aten::relu").calls, 1u);
  EXPECT_THAT(times_of(report, "aten::relu"), ElementsAre(0, 0, 60, 100));
}

}  // namespace
}  // namespace levin::report
