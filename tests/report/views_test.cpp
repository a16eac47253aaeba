#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/report/report.h"
#include "levin/report/trace/trace_reader.h"
#include "levin/report/views/tensor_cores.h"
#include "tests/report/trace_text.h"

namespace levin::report {
namespace {

using report_test::base_trace;
using report_test::kH200;
using report_test::TraceText;
using ::testing::ElementsAre;

TraceReport report_of(const TraceText& trace) {
  return report_trace(read_trace_text(trace.text()));
}

nlohmann::json json_of(const TraceText& trace) {
  Report report;
  report.traces.push_back(report_of(trace));
  return nlohmann::json::parse(to_json(report))["traces"][0];
}

TEST(Sums, AgreeBetweenViews) {
  auto trace = base_trace();
  trace.kernel("orphan", 1750, 100, 77, 99).device("gpu_memset", "Memset (Device)", 2310, 5, 6, 12);
  const auto json = json_of(trace);
  double parts = 0;
  for (const auto& row : json["overview"]["categories"]) parts += row["average_us"].get<double>();
  EXPECT_NEAR(parts, json["overview"]["average_us"].get<double>(), 1e-6);
  const auto sum = [](const nlohmann::json& rows, const char* key) {
    return std::accumulate(rows.begin(), rows.end(), 0.0,
                           [&](double all, const nlohmann::json& row) { return all + row[key].get<double>(); });
  };
  // Kernels by name and by properties; copies and fills; what operators launched and what nobody did.
  const double kernels = sum(json["kernels"], "total_us"), transfers = sum(json["transfers"], "total_us");
  EXPECT_NEAR(kernels, 800, 1e-6);
  EXPECT_NEAR(sum(json["kernels_by_properties"], "total_us"), kernels, 1e-6);
  double unowned = 0;
  for (const auto& row : json["kernels_by_properties"]) {
    if (row["operator"] == "CallTreeRoot") unowned += row["total_us"].get<double>();
  }
  EXPECT_NEAR(sum(json["operators"], "device_self_us") + unowned, kernels + transfers, 1e-6);
  EXPECT_NEAR(sum(json["operators_by_shape"], "device_self_us"), sum(json["operators"], "device_self_us"), 1e-6);
  // The spans of the timeline are those of the views.
  double drawn = 0;
  for (const auto& lane : json["trace"]["lanes"]) {
    for (const auto& span : lane["spans"]) {
      if (json["trace"]["kinds"][span[4].get<size_t>()] == "kernel") drawn += span[2].get<double>();
    }
  }
  EXPECT_NEAR(drawn, kernels, 1e-6);
  EXPECT_NEAR(sum(json["idle"]["causes"], "total_us"), json["idle"]["total_us"].get<double>(), 1e-6);
  EXPECT_NEAR(sum(json["critical_path"]["parts"], "total_us"), json["critical_path"]["total_us"].get<double>(), 1e-6);
  EXPECT_NEAR(sum(json["critical_path"]["segments"], "dur_us"), json["critical_path"]["total_us"].get<double>(), 1e-6);
}

TEST(Sources, AreThereForEveryView) {
  const auto json = json_of(base_trace());
  for (const char* key : {"overview", "steps", "recommendations", "operators", "kernels", "transfers", "modules",
                          "trace", "roofline", "idle", "critical_path", "mfu", "what_if"})
    EXPECT_TRUE(json["sources"].contains(key)) << key;
}

// The keys that docs/report.md promises.
TEST(Json, HasTheKeys) {
  const auto json = json_of(base_trace());
  for (const char* key : {"name",
                          "file",
                          "file_bytes",
                          "run",
                          "worker",
                          "rank",
                          "world_size",
                          "span",
                          "events",
                          "start_us",
                          "duration_us",
                          "has_device",
                          "warnings",
                          "facts",
                          "overview",
                          "steps",
                          "gpu_summary",
                          "tensor_cores",
                          "recommendations",
                          "operators",
                          "operators_by_shape",
                          "kernels",
                          "kernels_by_properties",
                          "transfers",
                          "memory",
                          "modules",
                          "trace",
                          "roofline",
                          "idle",
                          "launches",
                          "annotations",
                          "critical_path",
                          "mfu",
                          "what_if",
                          "sources"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["start_us"], 1000.0);
  EXPECT_EQ(json["steps"][0]["start_us"], 0.0);
}

TEST(Memory, PeakOfATraceWithoutTotalsIsThatOfItsEvents) {
  TraceText trace;
  trace.devices(kH200)
      .op("aten::linear", 100, 100, 1)
      .call("cudaLaunchKernel", 102, 2, 1, 5)
      .kernel("gemm", 105, 10, 1, 5)
      .memory(110, 1000, 1, 0)
      .memory(120, 500, 2, 0)
      .memory(130, -1000, 1, 0)
      .memory(140, -200, 9, 0, -1)
      .memory(150, 300, 3, 0, -1);
  const auto report = report_of(trace);
  ASSERT_EQ(report.memory.size(), 2u);
  EXPECT_EQ(report.memory[1].peak_allocated, 1500);
  EXPECT_EQ(report.memory[1].peak_time, 120'000);
  EXPECT_EQ(report.gpus.at(0).peak_allocated, 1500);
  // 200 bytes were there before the recording.
  EXPECT_EQ(report.memory[0].peak_allocated, 300);
}

TEST(Memory, BlocksCurveAndStatistics) {
  TraceText trace;
  trace.devices(kH200)
      .op("aten::linear", 100, 100, 1)
      .op("aten::addmm", 110, 80, 2)
      .op("aten::empty", 120, 20, 3)
      .op("aten::relu", 300, 50, 4)
      .memory(130, 1000, 7, 5000)
      .memory(310, 200, 8, 5200)
      .memory(320, -1000, 7, 4200)
      .memory(330, -50, 99, 4150)
      .memory(335, 64, 5, 64, -1);
  const auto report = report_of(trace);
  ASSERT_EQ(report.memory.size(), 2u);
  EXPECT_EQ(report.memory[0].device, -1);
  const auto& gpu = report.memory[1];
  EXPECT_EQ(gpu.peak_allocated, 5200);
  EXPECT_EQ(gpu.peak_reserved, 10400);
  EXPECT_EQ(gpu.curve.size(), 4u);
  ASSERT_EQ(gpu.blocks.size(), 3u);
  EXPECT_EQ(gpu.blocks[0].operator_name, "aten::addmm (aten::empty)");
  EXPECT_EQ(*gpu.blocks[0].released - *gpu.blocks[0].allocated, 190'000);
  EXPECT_EQ(gpu.blocks[1].operator_name, "aten::relu");
  EXPECT_FALSE(gpu.blocks[1].released);
  EXPECT_FALSE(gpu.blocks[2].allocated);
  const auto row = [&](const char* name) {
    for (const auto& item : gpu.statistics) {
      if (report.events.name(item.name) == name) return item;
    }
    return MemoryStatistics{};
  };
  EXPECT_EQ(row("aten::linear").size, 1000);
  EXPECT_EQ(row("aten::linear").self_size, 0);
  EXPECT_EQ(row("aten::empty").self_count, 1);
  EXPECT_EQ(row("aten::relu").increase, 200 - 1000 - 50);
  EXPECT_EQ(row("aten::relu").self_size, 200);
}

TEST(Memory, ThinCurvesKeepTheirPeaks) {
  std::vector<MemoryPoint> points;
  for (int i = 0; i < 100'000; ++i) points.push_back({i, i == 54321 ? 1'000'000 : i % 100, 0});
  const auto thinned = thin(points, 200);
  EXPECT_LE(thinned.size(), 200u);
  EXPECT_TRUE(std::any_of(thinned.begin(), thinned.end(), [](auto& point) { return point.allocated == 1'000'000; }));
}

TEST(Modules, ForwardAndBackward) {
  TraceText trace;
  trace.annotation("ProfilerStep#1", 0, 1000, 1)
      .span("python_function", "nn.Module: Net_0", 10, 400, 1, R"("Unit": "net")")
      .span("python_function", "nn.Module: Linear_0", 20, 100, 1, R"("Unit": "net.fc1")")
      .op("aten::addmm", 30, 50, 2,
          R"("Sequence number": 5, "Input Dims": [[4], [8, 16], [16, 4]], "Input type": ["float", "float", "float"])")
      .call("cudaLaunchKernel", 40, 10, 2, 1)
      .kernel("gemm", 60, 100, 2, 1)
      .op("autograd::engine::evaluate_function: AddmmBackward0", 500, 200, 3,
          R"("Sequence number": 5, "Fwd thread id": 1)")
      .op("aten::mm", 510, 100, 4)
      .call("cudaLaunchKernel", 520, 10, 4, 2)
      .kernel("gemm_backward", 600, 150, 4, 2);
  const auto report = report_of(trace);
  ASSERT_EQ(report.modules.size(), 2u);
  const auto &net = report.modules[0], &fc1 = report.modules[1];
  EXPECT_EQ(net.name, "net");
  EXPECT_EQ(fc1.name, "net.fc1");
  EXPECT_EQ(fc1.parent, 0);
  EXPECT_EQ(fc1.forward_device, 100'000);
  EXPECT_EQ(fc1.backward_device, 150'000);
  EXPECT_EQ(net.device_total(), 250'000);
  EXPECT_EQ(net.device_self, 0);
  EXPECT_EQ(net.host_self, 300'000);
  EXPECT_EQ(fc1.flops, 1024);  // 2 * 8 * 16 * 4, as torch counts
}

TEST(Modules, KernelsOfAReplayedGraphNameTheirUnit) {
  TraceText trace;
  trace.devices(kH200).annotation("ProfilerStep#0", 0, 100, 1).call("cudaGraphLaunch", 5, 5, 2, 7);
  const auto kernel = [&](double start, double duration, const char* unit, const char* phase) {
    trace.device("kernel", "k", start, duration, 2, 7,
                 "\"Unit\": \"" + std::string(unit) + "\", \"Phase\": \"" + phase + "\"");
  };
  kernel(20, 3, "net.first", "forward");
  kernel(30, 4, "net.last.fc", "forward");
  kernel(40, 5, "net.last.fc", "backward");
  trace.device("kernel", "adam", 50, 6, 2, 7);
  const auto report = report_of(trace);
  ASSERT_EQ(report.modules.size(), 4u);
  const auto &net = report.modules[0], &first = report.modules[1], &last = report.modules[2], &fc = report.modules[3];
  EXPECT_EQ(net.name, "net");
  EXPECT_EQ(first.name, "net.first");
  EXPECT_EQ(fc.name, "net.last.fc");
  EXPECT_EQ(fc.parent, 2);
  EXPECT_EQ(last.parent, 0);
  EXPECT_EQ(first.forward_device, 3000);
  EXPECT_EQ(fc.forward_device, 4000);
  EXPECT_EQ(fc.backward_device, 5000);
  EXPECT_EQ(last.device_total(), 9000);
  EXPECT_EQ(net.device_total(), 12000);
  EXPECT_EQ(net.device_self, 0);
  EXPECT_EQ(fc.occurrences, 1u);
}

TEST(TensorCores, CountKernelsOfAReplayedGraph) {
  TraceText trace;
  trace.devices(kH200).annotation("ProfilerStep#0", 0, 100, 1).call("cudaGraphLaunch", 5, 5, 2, 7);
  trace.device("kernel", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", 20, 30, 2, 7);
  trace.device("kernel", "adam", 50, 10, 2, 7);
  const auto report = report_of(trace);
  ASSERT_EQ(report.gpus.size(), 1u);
  ASSERT_TRUE(report.gpus[0].tensor_core_time);
  EXPECT_DOUBLE_EQ(*report.gpus[0].tensor_core_time, 0.75);
}

TEST(TensorCores, NamesOfHopper) {
  for (const char* name :
       {"nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", "nvjet_tst_192x192_64x4_1x2_h_bz_coopA_TNT",
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1",
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm90<cutlass::gemm::kernel::GmmaKernel>>",
        "cutlass_80_tensorop_s1688gemm_128x256_16x3_nt_align4",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize32x32x64_stage3",
        "void levin::kernels::detail::short_attention_backward<__nv_bfloat16, true>",
        "void levin::kernels::detail::causal_attention_backward<__nv_bfloat16, true>",
        "void levin::kernels::detail::wgmma_product<levin::kernels::detail::LogitTile<false> >"})
    EXPECT_TRUE(uses_tensor_cores(name)) << name;
  for (const char* name :
       {"ampere_sgemm_128x64_tn", "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>",
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_aligna4_alignc4_execute",
        "void at::native::vectorized_elementwise_kernel<4>", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"})
    EXPECT_FALSE(uses_tensor_cores(name)) << name;
  EXPECT_FALSE(uses_tensor_cores("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", true));
  EXPECT_TRUE(uses_tensor_cores("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", true));
}

TEST(Idle, HasCauses) {
  TraceText trace;
  trace.annotation("ProfilerStep#1", 0, 1000, 1)
      .annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 100, 2)
      .op("aten::mm", 150, 20, 3)
      .call("cudaLaunchKernel", 155, 10, 3, 1)
      .kernel("gemm", 200, 100, 3, 1)
      .op("aten::item", 170, 160, 4)
      .call("cudaStreamSynchronize", 180, 130, 4, 2)
      .op("aten::mm", 380, 20, 5)
      .call("cudaLaunchKernel", 385, 10, 5, 3)
      .kernel("gemm", 400, 100, 5, 3)
      .annotation("save_checkpoint", 500, 300, 6)
      .op("aten::mm", 880, 20, 7)
      .call("cudaLaunchKernel", 885, 10, 7, 4)
      .kernel("gemm", 900, 100, 7, 4);
  const auto report = report_of(trace);
  const auto us = [&](IdleCause cause) { return report.idle[cause] / 1000; };
  EXPECT_EQ(report.idle.total, 700'000);
  EXPECT_EQ(us(IdleCause::kDataLoader), 100);
  EXPECT_EQ(us(IdleCause::kCheckpoint), 300);
  EXPECT_EQ(us(IdleCause::kSync), 100);
  EXPECT_EQ(us(IdleCause::kHost), 200);
}

TEST(CriticalPath, GoesOverWhatWasWaitedFor) {
  const auto report = report_of(base_trace());
  std::vector<std::string> names;
  for (const auto& segment : report.critical_path->segments) names.push_back(segment.name);
  EXPECT_THAT(names, ElementsAre("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "aten::linear", "host",
                                 "aten::copy_", "host", "aten::relu", "cudaLaunchKernel", "relu_kernel"));
  EXPECT_EQ(report.critical_path->total, 1'300'000);
}

TEST(Roofline, PlacesProductsAndCountsMfu) {
  TraceText trace;
  trace.devices(kH200)
      .annotation("ProfilerStep#1", 0, 1000, 1)
      .op("aten::mm", 0, 20, 2,
          R"("Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16", "c10::BFloat16"])")
      .call("cudaLaunchKernel", 5, 10, 2, 1)
      .kernel("nvjet_tst_128x256", 20, 200, 2, 1);
  const auto report = report_of(trace);
  ASSERT_TRUE(report.roofline);
  const auto& point = report.roofline->points.at(0);
  EXPECT_DOUBLE_EQ(point.flops, 2.0 * 4096 * 4096 * 4096);
  EXPECT_DOUBLE_EQ(point.bytes, 3.0 * 4096 * 4096 * 2);
  EXPECT_TRUE(point.is_compute_bound);
  EXPECT_NEAR(point.tflops(), 687.2, 0.1);
  EXPECT_NEAR(report.roofline->peak_tflops, 989.4, 0.1);
  EXPECT_EQ(report.roofline->precision, "bf16");
  ASSERT_TRUE(report.mfu);
  EXPECT_NEAR(report.mfu->achieved_tflops(), 137.4, 0.1);
}

/// Products of two matrices, one that adds to its first input, a vector, convolutions both ways, attention of packed
/// projections and its gradient.
TEST(Roofline, CountsOperators) {
  TraceText trace;
  trace.devices(kH200).annotation("ProfilerStep#1", 0, 1000, 1);
  struct Row {
    const char* name;
    const char* shapes;
    double flops;
    const char* values = "[]";
  };
  const Row rows[]{
      {"aten::addmv", "[[128], [128, 64], [64], [], []]", 2.0 * 128 * 64},
      {"aten::convolution", "[[2, 4, 9, 9], [6, 2, 3, 3], [6]]", 2.0 * 2 * 25 * 6 * 2 * 9,
       R"(["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "2"])"},
      {"aten::convolution_backward", "[[2, 6, 19, 19], [2, 4, 9, 9], [4, 6, 3, 3]]", 2 * 2.0 * 2 * 81 * 4 * 6 * 9,
       R"(["", "", "", "[6]", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1", "[True, True, True]"])"},
      {"levin::matmul", "[[128, 64], [64, 32]]", 2.0 * 128 * 64 * 32},
      {"levin::matmul_and_sums", "[[64, 128], [128, 32]]", 2.0 * 64 * 128 * 32},
      {"levin::matmul_into", "[[128, 32], [128, 64], [64, 32]]", 2.0 * 128 * 64 * 32},
      {"levin::fp8_mm", "[[128, 64], [32, 64]]", 2.0 * 128 * 64 * 32},
      {"levin::linear_cross_entropy_step", "[[128, 64], [32, 64], [128], [128], [128, 32]]", 2.0 * 128 * 64 * 32},
      {"levin::causal_attention_backward", "[[2, 256, 4, 64], [2, 256, 3, 4, 64], [2, 256, 4, 64], [2, 4, 256]]",
       10.0 * 2 * 4 * 256 * 256 * 64},
      {"levin::short_attention", "[[2, 197, 3, 4, 64]]", 4.0 * 2 * 4 * 197 * 197 * 64},
      {"levin::short_attention_backward", "[[2, 197, 4, 64], [2, 197, 3, 4, 64], [2, 197, 4, 64], [2, 4, 197]]",
       10.0 * 2 * 4 * 197 * 197 * 64}};
  int at = 0;
  for (const auto& row : rows) {
    trace.op(
        row.name, 100 * at, 20, 2 + at,
        std::string(R"("Input Dims": )") + row.shapes +
            R"(, "Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "float"], "Concrete Inputs": )" +
            row.values);
    trace.call("cudaLaunchKernel", 100 * at + 5, 10, 2 + at, 1 + at)
        .kernel("kernel", 100 * at + 20, 50, 2 + at, 1 + at);
    ++at;
  }
  const auto report = report_of(trace);
  for (const auto& row : rows) {
    const auto found = std::ranges::find_if(
        report.operators, [&](const auto& known) { return report.events.name(known.name) == row.name; });
    ASSERT_NE(found, report.operators.end()) << row.name;
    EXPECT_EQ(found->flops, row.flops) << row.name;
  }
}

TEST(Lanes, ManySpansAreDrawnTogether) {
  TraceText trace;
  for (int i = 0; i < 5000; ++i) trace.op("aten::add", 10 * i, 5, i + 1);
  const auto events = read_trace_text(trace.text());
  const auto steps = view_steps(events);
  const auto lanes = view_lanes(events, steps, 500);
  ASSERT_EQ(lanes.lanes.size(), 1u);
  EXPECT_LE(lanes.lanes[0].spans.size(), 500u);
  uint64_t count = 0;
  for (const auto& span : lanes.lanes[0].spans) count += span.count;
  EXPECT_EQ(count, 5000u);
  EXPECT_GT(lanes.bucket, 0);
  EXPECT_EQ(view_lanes(events, steps, 10'000).bucket, 0);
}

TEST(Text, NamesTheParts) {
  Report report;
  report.traces.push_back(report_of(base_trace()));
  report.traces[0].name = "worker";
  const auto text = to_text(report);
  EXPECT_THAT(text, ::testing::HasSubstr("worker: 1 step of 1.300 ms on average"));
  EXPECT_THAT(text, ::testing::HasSubstr("53.85 %"));
  EXPECT_THAT(text, ::testing::HasSubstr("The step waits for data (0.200 ms a step)"));
}

}  // namespace
}  // namespace levin::report
