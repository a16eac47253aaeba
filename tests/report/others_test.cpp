// Traces that other versions of PyTorch, other devices and other programs write, each with one thing that is easily
// read wrong.
#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/report/report.h"
#include "levin/report/trace/trace_reader.h"
#include "levin/report/views/compare.h"
#include "levin/testing/error_of.h"
#include "levin/testing/temporary_folder.h"
#include "tests/report/trace_text.h"

namespace levin::report {
namespace {

using levin::testing::error_of;
using report_test::kH200;
using report_test::TraceText;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kV100 =
    R"([{"id": 0, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 34084028416, "computeMajor": 7, "computeMinor": 0}])";
constexpr const char* kMi300 =
    R"([{"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4, "warpSize": 64}])";

TraceReport report_of(const TraceText& trace) {
  return report_trace(read_trace_text(trace.text()));
}

const OperatorRow* row_of(const TraceReport& report, const std::string& name) {
  const auto found = std::ranges::find_if(report.operators,
                                          [&](const OperatorRow& row) { return report.events.name(row.name) == name; });
  return found == report.operators.end() ? nullptr : &*found;
}

const Recommendation* advice(const TraceReport& report, const std::string& id) {
  const auto found = std::ranges::find_if(report.recommendations, [&](const auto& row) { return row.id == id; });
  return found == report.recommendations.end() ? nullptr : &*found;
}

bool has_estimate(const TraceReport& report, const std::string& id) {
  return std::ranges::any_of(report.what_if, [&](const WhatIf& what) { return what.id == id; });
}

// PyTorch of 2022 and 2023: the id of a call is its correlation, and may be that of an operator elsewhere.
TEST(Others, IdOfACallIsItsCorrelation) {
  TraceText trace;
  trace.devices(kH200)
      .annotation("ProfilerStep#1", 0, 1000, 1)
      .op("aten::transpose", 10, 20, 7)
      .op("aten::matmul", 100, 200, 3)
      .op("aten::mm", 110, 150, 4)
      .call("cudaLaunchKernel", 120, 50, 7, 7)
      .kernel("gemm", 300, 400, 7, 7);
  const auto report = report_of(trace);
  EXPECT_EQ(row_of(report, "aten::mm")->device_self, 400'000);
  EXPECT_EQ(row_of(report, "aten::matmul")->device_total, 400'000);
  EXPECT_EQ(row_of(report, "aten::mm")->host_self, 100'000);
  EXPECT_EQ(row_of(report, "aten::transpose")->device_self, 0);
  EXPECT_EQ(row_of(report, "aten::transpose")->host_self, 20'000);
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("External id of 1 of 1 launches")));
}

// By chance the number of a call may be that of an operator around it.
TEST(Others, IdThatIsACorrelationMayNameAnOperatorAround) {
  TraceText trace;
  trace.op("aten::matmul", 100, 200, 9)
      .op("aten::mm", 110, 150, 4)
      .call("cudaLaunchKernel", 120, 50, 9, 9)
      .kernel("gemm", 300, 400, 9, 9)
      .op("aten::relu", 600, 50, 20)
      .call("cudaLaunchKernel", 610, 20, 10, 10);
  const auto report = report_of(trace);
  EXPECT_EQ(row_of(report, "aten::mm")->device_self, 400'000);
  EXPECT_EQ(row_of(report, "aten::mm")->host_self, 100'000);
  EXPECT_EQ(row_of(report, "aten::matmul")->host_self, 50'000);
}

// As in a test of PyTorch's plugin: where ids are names, one of them counts though its operator has ended.
TEST(Others, IdThatIsANameCountsMoreThanTime) {
  TraceText trace;
  trace.op("aten::matmul", 100, 300, 2)
      .op("aten::mm", 110, 50, 3)
      .call("cudaLaunchKernel", 120, 10, 3, 100)
      .kernel("first", 500, 5, 3, 100)
      .call("cudaLaunchKernel", 200, 10, 3, 101)
      .kernel("second", 600, 7, 3, 101);
  const auto report = report_of(trace);
  EXPECT_EQ(row_of(report, "aten::mm")->device_self, 12'000);
  EXPECT_THAT(report.warnings, IsEmpty());
}

// Ids of another kind, which name operators elsewhere.
TEST(Others, IdsThatNameOperatorsElsewhereAreNotTrusted) {
  TraceText trace;
  trace.op("aten::transpose", 10, 20, 500)
      .op("aten::mm", 110, 150, 4)
      .call("cudaLaunchKernel", 120, 50, 500, 77)
      .kernel("gemm", 300, 400, 500, 77);
  const auto report = report_of(trace);
  EXPECT_EQ(row_of(report, "aten::mm")->device_self, 400'000);
  EXPECT_EQ(row_of(report, "aten::transpose")->device_self, 0);
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("External id of 1 of 1 launches")));
}

TEST(Others, IdCountsWhereNoOperatorRuns) {
  TraceText trace;
  trace.op("op1", 100, 60, 2).call("cudaLaunchKernel", 200, 10, 2, 334).kernel("k", 220, 38, 2, 334);
  EXPECT_EQ(row_of(report_of(trace), "op1")->device_self, 38'000);
}

// Whole microseconds: the call seems to begin before its operator.
TEST(Others, CallBeginsAMicrosecondBeforeItsOperator) {
  TraceText trace;
  trace.op("aten::_to_copy", 100, 900, 3)
      .op("aten::copy_", 111, 800, 4)
      .call("cudaMemcpyAsync", 110, 800, 9000, 9000)
      .device("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 120, 700, 9000, 9000);
  const auto report = report_of(trace);
  EXPECT_EQ(row_of(report, "aten::copy_")->device_self, 700'000);
  EXPECT_EQ(row_of(report, "aten::_to_copy")->host_self, 100'000);
}

TEST(Others, IdThatNamesNobodyGoesByTime) {
  TraceText trace;
  trace.op("aten::mm", 110, 150, 4).call("cudaLaunchKernel", 120, 50, 9000, 9000).kernel("gemm", 300, 400, 9000, 9000);
  // Another thread runs an operator at that time.
  trace.span("cpu_op", "aten::add", 100, 300, 2, "\"External id\": 5");
  const auto report = report_of(trace);
  EXPECT_EQ(row_of(report, "aten::mm")->device_self, 400'000);
  EXPECT_EQ(row_of(report, "aten::add")->device_self, 0);
}

// The calls name the operator around the collective; only its span has the name that ranks have in common.
TEST(Others, CollectivesAreFoundByWhatLaunchedTheirKernels) {
  TraceText trace;
  trace.devices(kH200)
      .op("record_param_comms", 100, 100, 3)
      .annotation("nccl:all_reduce", 110, 80, 4)
      .call("cudaLaunchKernelExC", 120, 10, 3, 9)
      .device("kernel", "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", 300, 400, 3, 9,
              R"("Collective name": "allreduce", "In msg nelems": 1000, "dtype": "BFloat16", "Group size": 2)");
  const auto report = report_of(trace);
  ASSERT_EQ(report.collectives.size(), 1u);
  const auto& only = report.collectives[0];
  EXPECT_EQ(only.name, "nccl:all_reduce");
  EXPECT_EQ(only.bytes, 2000);
  EXPECT_EQ(only.ranges.at(0).end, 700'000);
  EXPECT_EQ(row_of(report, "nccl:all_reduce")->device_self, 400'000);
}

TEST(Others, CollectiveWithoutSizesHasNoBytes) {
  const auto rank = [](int number) {
    TraceText trace;
    trace.member("distributedInfo",
                 R"({"backend": "nccl", "rank": )" + std::to_string(number) + R"(, "world_size": 128})");
    trace.op("nccl:all_reduce", 100, 50, 3).call("cudaLaunchKernel", 110, 5, 3, 2);
    trace.kernel("ncclKernel_AllReduce", 400, 300, 3, 2);
    return report_of(trace);
  };
  Report report;
  report.traces.push_back(rank(0));
  report.traces.push_back(rank(1));
  report.distributed = view_distributed({&report.traces[0], &report.traces[1]});
  EXPECT_EQ(report.distributed->operations.at(0).bytes, -1);
  EXPECT_EQ(report.distributed->missing, 126);
  EXPECT_THAT(report.distributed->warnings, ElementsAre(HasSubstr("126 of 128 ranks are not here")));
  const auto json = nlohmann::json::parse(to_json(report))["distributed"];
  EXPECT_TRUE(json["operations"][0]["total_bytes"].is_null());
  EXPECT_TRUE(json["operations"][0]["average_bytes"].is_null());
  EXPECT_EQ(json["missing_ranks"], 126);
}

TEST(Others, SymmetricMemoryIsCommunication) {
  TraceText trace;
  trace.op("symm_mem::multimem_all_reduce_", 0, 50, 1)
      .call("cudaLaunchKernel", 10, 5, 1, 1)
      .kernel("void multimem_all_reduce_kernel<c10::BFloat16, 16>(...)", 100, 300, 1, 1);
  EXPECT_EQ(report_of(trace).steps.average_of(Part::kCommunication), 300'000);
}

// ROCm: memory of device type 6; kernels are on the node of the machine, 2.
TraceText amd_trace(const std::string& type, const std::string& kernel, int64_t allocated = 1'000'000) {
  TraceText trace;
  trace.devices(kMi300).member("hip_runtime_version", "60443483");
  trace.annotation("ProfilerStep#1", 0, 1000, 1)
      .op("aten::mm", 10, 50, 2,
          R"("Input Dims": [[4096, 4096], [4096, 4096]], "Input type": [")" + type + R"(", ")" + type + R"("])")
      .call("hipModuleLaunchKernel", 20, 10, 2, 5);
  trace.span("kernel", kernel, 60, 900, 7, R"("External id": 2, "correlation": 5, "device": 2, "stream": 7)", "2");
  trace.raw(
      R"({"ph": "i", "name": "[memory]", "pid": 100, "tid": 1, "ts": 30, "args": {"Total Reserved": 0, "Total Allocated": )" +
      std::to_string(allocated) + R"(, "Bytes": 4096, "Addr": 9, "Device Id": 0, "Device Type": 6}})");
  trace.memory(40, 8, 10, 8, -1);
  return trace;
}

constexpr const char* kMatrixCores = "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB1";

TEST(Others, MemoryOfAmdIsThatOfTheGpu) {
  const auto report = report_of(amd_trace("c10::BFloat16", kMatrixCores));
  ASSERT_EQ(report.memory.size(), 2u);
  EXPECT_EQ(device_name(report.memory[0].device), "CPU");
  EXPECT_EQ(report.memory[0].peak_allocated, 8);
  EXPECT_EQ(device_name(report.memory[1].device), "GPU0");
  EXPECT_EQ(report.memory[1].peak_allocated, 1'000'000);
  ASSERT_EQ(report.gpus.size(), 1u);
  EXPECT_EQ(report.gpus[0].info.name, "AMD Instinct MI300X");
  EXPECT_EQ(report.gpus[0].peak_allocated, 1'000'000);
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("taken for GPU 0")));
  EXPECT_NE(advice(report_of(amd_trace("c10::BFloat16", kMatrixCores, 200'000'000'000)), "memory_limit"), nullptr);
}

TEST(Others, PrecisionIsAdvisedByTheInputsOnAmd) {
  for (const char* kernel : {kMatrixCores, "ck_tile_gemm"}) {
    const auto report = report_of(amd_trace("c10::BFloat16", kernel));
    EXPECT_EQ(advice(report, "fp32_matmul"), nullptr) << kernel;
    EXPECT_FALSE(has_estimate(report, "bf16")) << kernel;
  }
  EXPECT_DOUBLE_EQ(*report_of(amd_trace("c10::BFloat16", kMatrixCores)).gpus[0].tensor_core_time, 1);
  const auto report = report_of(amd_trace("float", "Cijk_Ailk_Bljk_SB_MT64x64x16_MI16x16x4x1"));
  ASSERT_NE(advice(report, "fp32_matmul"), nullptr);
  EXPECT_THAT(advice(report, "fp32_matmul")->option, Not(HasSubstr("TF32")));
  EXPECT_THAT(advice(report, "fp32_matmul")->title, HasSubstr("float32"));
}

TraceText product_trace(const char* devices, const std::string& type, const std::string& kernel) {
  TraceText trace;
  trace.devices(devices)
      .annotation("ProfilerStep#1", 0, 1000, 1)
      .op("aten::mm", 10, 50, 2,
          R"("Input Dims": [[4096, 4096], [4096, 4096]], "Input type": [")" + type + R"(", ")" + type + R"("])")
      .call("cudaLaunchKernel", 20, 10, 2, 5)
      .kernel(kernel, 60, 900, 2, 5);
  return trace;
}

TEST(Others, VoltaHasTensorCoresForFloat16Alone) {
  const auto report = report_of(product_trace(kV100, "float", "volta_sgemm_128x64_tn"));
  ASSERT_NE(advice(report, "fp32_matmul"), nullptr);
  EXPECT_THAT(advice(report, "fp32_matmul")->option, HasSubstr("16-mixed"));
  EXPECT_THAT(advice(report, "fp32_matmul")->option, Not(HasSubstr("bf16")));
  EXPECT_THAT(advice(report, "fp32_matmul")->option, Not(HasSubstr("TF32")));
  EXPECT_TRUE(has_estimate(report, "fp16"));
  EXPECT_FALSE(has_estimate(report, "bf16"));
}

TEST(Others, ProductsIn16BitsNeedNoOtherPrecision) {
  const auto report = report_of(product_trace(kH200, "c10::BFloat16", "a_kernel_of_tomorrow"));
  EXPECT_EQ(advice(report, "fp32_matmul"), nullptr);
  EXPECT_NE(advice(report_of(product_trace(kH200, "float", "a_kernel_of_tomorrow")), "fp32_matmul"), nullptr);
}

// Forward on one thread, backward on another that is slow to launch; a loader works on a third.
TEST(Others, CriticalPathGoesOverTheThreadsOfTheStep) {
  TraceText trace;
  trace.annotation("ProfilerStep#1", 0, 1000, 1)
      .op("aten::linear", 10, 190, 2)
      .call("cudaLaunchKernel", 20, 5, 2, 5)
      .kernel("forward", 30, 40, 2, 5)
      .span("cpu_op", "LinearBackward", 250, 600, 2, R"("External id": 3, "Fwd thread id": 1, "Sequence number": 4)")
      .span("cuda_runtime", "cudaLaunchKernel", 840, 5, 2, R"("External id": 3, "correlation": 6)")
      .kernel("backward", 850, 50, 3, 6)
      .span("cpu_op", "decode", 0, 1000, 3, R"("External id": 8)");
  const auto report = report_of(trace);
  std::vector<std::pair<std::string, Ns>> parts;
  for (const auto& segment : report.critical_path->segments) parts.emplace_back(segment.name, segment.duration / 1000);
  EXPECT_THAT(parts, ElementsAre(std::pair("host", 10), std::pair("aten::linear", 190), std::pair("host", 50),
                                 std::pair("LinearBackward", 590), std::pair("cudaLaunchKernel", 10),
                                 std::pair("backward", 50), std::pair("host", 100)));
}

TEST(Others, LongestSegmentsAreShown) {
  TraceText trace;
  trace.annotation("ProfilerStep#1", 0, 10'000, 1);
  for (int i = 0; i < 600; ++i) trace.op("aten::op" + std::to_string(i), 10 * i, 5, i + 2);
  trace.op("aten::long", 7000, 2000, 900);
  Report report;
  report.traces.push_back(report_of(trace));
  const auto path = nlohmann::json::parse(to_json(report))["traces"][0]["critical_path"];
  EXPECT_EQ(path["segments"].size(), 400u);
  EXPECT_GT(path["segments_left_out"].get<int>(), 0);
  EXPECT_TRUE(std::ranges::any_of(path["segments"], [](const auto& row) { return row["name"] == "aten::long"; }));
}

TEST(Others, MtiaHasDevices) {
  TraceText trace;
  trace.annotation("ProfilerStep#1", 0, 1000, 1)
      .op("aten::add", 10, 50, 2)
      .span("mtia_runtime", "runFunction - job_prep_and_submit_for_execution", 20, 10, 1, R"("correlation": 5)")
      .span("mtia_ccp_events", "add-dtype_Float", 100, 300, 4, R"("correlation": 5, "stream": 1)", "9")
      .span("mtia_ccp_events", "dma_request", 500, 100, 4, R"("direction": "HOST_TO_DEVICE", "size": 4096)", "9")
      .span("mtia_ccp_events", "event_wait", 0, 1000, 5, R"("stream": 2)", "9");
  const auto report = report_of(trace);
  EXPECT_TRUE(report.has_device);
  EXPECT_THAT(report.warnings, IsEmpty());
  ASSERT_EQ(report.gpus.size(), 1u);
  EXPECT_DOUBLE_EQ(report.gpus[0].utilization, 0.3);
  EXPECT_EQ(row_of(report, "aten::add")->device_self, 300'000);
  ASSERT_EQ(report.transfers.size(), 1u);
  EXPECT_EQ(report.events.name(report.transfers[0].name), "dma_request HOST_TO_DEVICE");
  EXPECT_EQ(report.transfers[0].bytes, 4096);
  EXPECT_TRUE(std::ranges::any_of(report.lanes.lanes, [](const Lane& lane) { return lane.group == "MTIA 9"; }));
}

// Short kernels with pauses between them: of launches, or of graphs that are replayed already.
TraceText late_trace(const std::string& launch, const char* devices = kH200) {
  TraceText trace;
  trace.devices(devices).annotation("ProfilerStep#1", 0, 1000, 1);
  for (int i = 0; i < 10; ++i) {
    const double at = 100 * i;
    trace.op("aten::mm", at, 60, i + 2).call(launch, at + 50, 5, i + 2, i + 1);
    trace.kernel("nvjet_tst_128x256", at + 60, 20, i + 2, i + 1);
  }
  return trace;
}

TEST(Others, GraphsAreNotAdvisedWhereTheyAreReplayed) {
  const auto launched = report_of(late_trace("cudaLaunchKernel"));
  ASSERT_NE(advice(launched, "tiny_batch"), nullptr);
  EXPECT_THAT(advice(launched, "tiny_batch")->option, HasSubstr("compile = true"));
  EXPECT_TRUE(has_estimate(launched, "graphs"));
  for (const char* launch : {"cudaGraphLaunch", "hipGraphLaunch"}) {
    const auto replayed = report_of(late_trace(launch));
    ASSERT_NE(advice(replayed, "tiny_batch"), nullptr);
    EXPECT_THAT(advice(replayed, "tiny_batch")->option, Not(HasSubstr("compile = true")));
    EXPECT_THAT(advice(replayed, "tiny_batch")->option, HasSubstr("in use already"));
    EXPECT_FALSE(has_estimate(replayed, "graphs")) << launch;
  }
}

TEST(Others, SpansThatBeginAndEndInTwoEvents) {
  const auto report = report_trace(read_trace_text(
      R"([{"ph": "B", "cat": "cpu_op", "name": "outer", "pid": 1, "tid": 1, "ts": 10, "args": {"External id": 3}},)"
      R"({"ph": "B", "cat": "cpu_op", "name": "inner", "pid": 1, "tid": 1, "ts": 20},)"
      R"({"ph": "B", "cat": "cpu_op", "name": "other", "pid": 1, "tid": 2, "ts": 15},)"
      R"({"ph": "E", "pid": 1, "tid": 1, "ts": 50.125}, {"ph": "E", "pid": 1, "tid": 1, "ts": 90},)"
      R"({"ph": "E", "pid": 1, "tid": 1, "ts": 95}])"));
  EXPECT_EQ(row_of(report, "outer")->host_total, 80'000);
  EXPECT_EQ(row_of(report, "inner")->host_total, 30'125);
  EXPECT_EQ(row_of(report, "outer")->host_self, 49'875);
  EXPECT_EQ(row_of(report, "other"), nullptr);
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("2 spans have a beginning or an end")));
}

// Chrome's format allows a list of events without its end, for programs that stop at any time.
TEST(Others, ListOfEventsWithoutItsEnd) {
  const std::string event = R"({"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 10, "dur": 5})";
  for (const auto& text : {"[" + event + ",\n", "[" + event}) {
    const auto report = report_trace(read_trace_text(text));
    EXPECT_EQ(report.operators.size(), 1u);
    EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("has no end")));
  }
  EXPECT_THAT(error_of([&] { read_trace_text("[" + event + ", {\"ph\"", "a.json"); }), HasSubstr("is cut off"));
  EXPECT_THAT(error_of([&] { read_trace_text("{\"traceEvents\": [" + event, "a.json"); }), HasSubstr("is cut off"));
}

TEST(Others, WhatIsNoTraceIsNamed) {
  EXPECT_THAT(error_of([] { read_trace_text("[[1, 2], [3, 4]]", "memory.raw"); }),
              HasSubstr("\"memory.raw\" is not a trace: its list has no events"));
  EXPECT_THAT(error_of([] { read_trace_text("{\"traceEvents\": []}", "b.json"); }),
              HasSubstr("\"b.json\" has no events of a profiler"));
}

TEST(Others, CategoriesThatAreNotKnownAreSaid) {
  TraceText trace;
  trace.op("a", 0, 10, 1)
      .span("hpu_op", "gemm", 0, 10, 9)
      .span("hpu_op", "gemm", 20, 10, 9)
      .span("overhead", "x", 0, 1, 9);
  EXPECT_THAT(report_of(trace).warnings, ElementsAre(HasSubstr("2 spans of the category \"hpu_op\"")));
}

TEST(Others, FolderOfTracesWithOtherNames) {
  const levin::testing::TemporaryFolder folder;
  const auto write = [&](const char* name, const std::string& text) { std::ofstream(folder.path() / name) << text; };
  const auto rank = [](int number) {
    return report_test::base_trace()
        .member("distributedInfo", R"({"rank": )" + std::to_string(number) + R"(, "world_size": 2})")
        .text();
  };
  write("model.safetensors.index.json", R"({"weight_map": {"a": "b"}})");
  write("numbers.json", "[1, 2]");
  EXPECT_THAT(error_of([&] { make_report({folder.path()}); }), HasSubstr("has neither traces"));
  write("rank-0.json", rank(0));
  write("rank-1.json", rank(1));
  const auto report = make_report({folder.path()});
  ASSERT_EQ(report.traces.size(), 2u);
  EXPECT_TRUE(report.distributed);
  EXPECT_THAT(report.traces[0].warnings, IsEmpty());
}

TEST(Others, RankAloneSaysSo) {
  const levin::testing::TemporaryFolder folder;
  auto trace = report_test::base_trace();
  trace.member("distributedInfo", R"({"rank": 3, "world_size": 8})");
  std::ofstream(folder.path() / "rank.json") << trace.text();
  EXPECT_THAT(make_report({folder.path()}).traces[0].warnings, Contains(HasSubstr("rank 3 of 8, the only one here")));
}

// Two spans of a run, with other times: their steps count alike.
TEST(Compare, AllSpansAndRanksOfARun) {
  const levin::testing::TemporaryFolder folder;
  const auto write = [&](const char* run, const char* name, std::vector<double> steps, int rank, double linear) {
    TraceText trace;
    trace.member("distributedInfo", R"({"rank": )" + std::to_string(rank) + R"(, "world_size": 2})");
    double at = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      trace.annotation("ProfilerStep#" + std::to_string(i), at, steps[i], static_cast<int>(10 * i) + 1)
          .span("python_function", "nn.Module: Net_0", at + 1, linear + 2, 1, R"("Unit": "net")")
          .span("python_function", "nn.Module: Linear_0", at + 2, linear, 1, R"("Unit": "net.fc")")
          .op("aten::linear", at + 2, linear, static_cast<int>(10 * i) + 2);
      at += steps[i];
    }
    std::filesystem::create_directories(folder.path() / run);
    std::ofstream(folder.path() / run / name) << trace.text();
  };
  write("before", "w.1.pt.trace.json", {100, 200}, 0, 40);
  write("before", "w.2.pt.trace.json", {600}, 0, 40);
  write("before", "v.1.pt.trace.json", {300, 400}, 1, 40);
  write("after", "w.1.pt.trace.json", {160, 240}, 0, 10);
  const auto view = compare_runs(make_report({folder.path() / "before", folder.path() / "after"}));
  ASSERT_TRUE(view);
  EXPECT_EQ(view->runs[0].traces, 3u);
  EXPECT_EQ(view->runs[0].ranks, 2u);
  EXPECT_EQ(view->runs[0].steps, 5u);
  EXPECT_THAT(view->total_us, ElementsAre(::testing::DoubleNear(320, 1e-9), ::testing::DoubleNear(200, 1e-9)));
  EXPECT_THAT(view->warnings, ElementsAre(HasSubstr("of 1 ranks")));
  ASSERT_EQ(view->steps.size(), 2u);
  EXPECT_EQ(view->steps[0].name, "ProfilerStep#0");
  EXPECT_NEAR(view->steps[0].total_us[0], (100 + 600 + 300) / 3.0, 1e-9);
  EXPECT_EQ(view->steps[1].total_us, (std::vector<double>{300, 240}));
  ASSERT_EQ(view->ranks.size(), 2u);
  EXPECT_EQ(view->ranks[0].total_us, (std::vector<double>{300, 200}));
  EXPECT_EQ(view->ranks[1].total_us, (std::vector<double>{350, -1}));
  ASSERT_EQ(view->units.size(), 2u);
  EXPECT_EQ(view->units[1].name, "net.fc");
  EXPECT_EQ(view->units[1].parent, 0);
  EXPECT_NEAR(view->units[1].difference_us[1], -30, 1e-9);
  EXPECT_NEAR(view->operators.at(0).difference_us[1], -30, 1e-9);
}

}  // namespace
}  // namespace levin::report
