// Launches with planted delays and queues, and ranges of a program with planted kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/report/report.h"
#include "levin/report/trace/trace_reader.h"
#include "tests/report/trace_text.h"

namespace levin::report {
namespace {

using report_test::kH200;
using report_test::TraceText;

TraceReport launches_report(const TraceText& trace) {
  return report_trace(read_trace_text(trace.text()));
}

TEST(Launches, DelaysShortWorkAndSlowCalls) {
  TraceText trace;
  trace.devices(kH200)
      .annotation("ProfilerStep#1", 0, 2000, 1)
      .op("aten::mm", 0, 1000, 2)
      // A short kernel, a copy whose call is slow, a kernel that waits, and one without a launch.
      .call("cudaLaunchKernel", 10, 10, 2, 1)
      .kernel("short", 25, 4, 2, 1)
      .call("cudaMemcpyAsync", 100, 60, 2, 2)
      .device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 170, 300, 2, 2)
      .call("cudaLaunchKernel", 200, 10, 2, 3)
      .kernel("late", 470, 100, 2, 3)
      .kernel("orphan", 700, 100, 2, 99);
  const auto report = launches_report(trace);
  const auto& view = report.launches;
  EXPECT_EQ(view.launches, 3u);
  EXPECT_EQ(view.call, 80'000);
  EXPECT_EQ(view.delay, (5 + 10 + 260) * 1000);
  EXPECT_EQ(view.median_delay, 10'000);
  EXPECT_EQ(view.longest_delay, 260'000);
  EXPECT_EQ(view.shorter, 1u);
  EXPECT_EQ(view.slow_calls, 1u);
  EXPECT_EQ(view.late, 1u);
  ASSERT_EQ(view.streams.size(), 1u);
  const auto& stream = view.streams[0];
  EXPECT_EQ(stream.launches, 3u);
  EXPECT_EQ(stream.longest, 1);
  // 15, 70 and 270 of 460 us with one launch in the queue.
  EXPECT_NEAR(stream.mean, 355.0 / 460, 1e-9);
  EXPECT_EQ(stream.full, 0);
  const auto json = nlohmann::json::parse(to_json({.title = "", .traces = {}, .distributed = {}, .runs = {}}));
  EXPECT_TRUE(json.contains("traces"));
}

TEST(Launches, FullQueueBlocks) {
  TraceText trace;
  trace.devices(kH200).annotation("ProfilerStep#1", 0, 10'000, 1).op("aten::mm", 0, 3000, 2);
  constexpr int kLaunches = 1100;
  for (int i = 0; i < kLaunches; ++i) trace.call("cudaLaunchKernel", i, 0.5, 2, i + 1);
  // The first kernel starts when all are launched; each lasts a microsecond.
  for (int i = 0; i < kLaunches; ++i) trace.kernel("k", 2000 + i, 1, 2, i + 1);
  const auto report = launches_report(trace);
  const auto& stream = report.launches.streams.at(0);
  EXPECT_EQ(stream.longest, kLaunches);
  // From the 1024th call at 1023 us until the 77th kernel starts at 2076 us.
  EXPECT_EQ(stream.full, (2076 - 1023) * 1000);
  EXPECT_LE(stream.curve.size(), 1000u);
  Report all;
  all.traces.push_back(launches_report(trace));
  const auto json = nlohmann::json::parse(to_json(all))["traces"][0]["launches"];
  EXPECT_EQ(json["streams"][0]["longest_queue"], kLaunches);
  EXPECT_EQ(json["rows"][0]["launches"], kLaunches);
  EXPECT_EQ(json["full_queue"], 1024);
}

TEST(Launches, GraphCountsOnce) {
  TraceText trace;
  trace.devices(kH200).annotation("ProfilerStep#1", 0, 100, 1).call("cudaGraphLaunch", 5, 5, 2, 7);
  for (int i = 0; i < 5; ++i) trace.kernel("k", 20 + 10 * i, 5, 2, 7);
  const auto report = launches_report(trace);
  EXPECT_EQ(report.launches.launches, 1u);
  EXPECT_EQ(report.launches.delay, 10'000);
}

TEST(Annotations, CountWhatWasLaunchedInThem) {
  TraceText trace;
  trace.devices(kH200)
      .annotation("ProfilerStep#1", 0, 1000, 1)
      .annotation("## forward ##", 10, 500, 2)
      .annotation("## attention ##", 20, 100, 3)
      .annotation("## attention ##", 200, 100, 4)
      .op("aten::mm", 30, 20, 5)
      .call("cudaLaunchKernel", 35, 10, 5, 1)
      .kernel("first", 100, 40, 5, 1)
      .op("aten::mm", 210, 20, 6)
      .call("cudaLaunchKernel", 215, 10, 6, 2)
      .kernel("second", 300, 50, 6, 2)
      .op("aten::relu", 400, 20, 7)
      .call("cudaLaunchKernel", 405, 10, 7, 3)
      .kernel("third", 450, 7, 7, 3)
      .op("aten::add", 800, 20, 8)
      .call("cudaLaunchKernel", 805, 10, 8, 4)
      .kernel("outside", 850, 9, 8, 4);
  const auto report = launches_report(trace);
  ASSERT_EQ(report.annotations.size(), 2u);
  const auto &forward = report.annotations[0], &attention = report.annotations[1];
  EXPECT_EQ(report.events.name(forward.name), "## forward ##");
  EXPECT_EQ(forward.device_total, 97'000);
  EXPECT_EQ(forward.device_self, 7'000);
  EXPECT_EQ(forward.launches, 3u);
  EXPECT_EQ(report.events.name(attention.name), "## attention ##");
  EXPECT_EQ(attention.occurrences, 2u);
  EXPECT_EQ(attention.device_total, 90'000);
  EXPECT_EQ(attention.host, 200'000);
}

}  // namespace
}  // namespace levin::report
