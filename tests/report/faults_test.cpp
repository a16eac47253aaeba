// Training programs with one fault each, as traces: the recommendations name it and its cost. A clean one gets none.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/report/recommend.h"
#include "levin/report/trace/trace_reader.h"
#include "tests/report/trace_text.h"

namespace levin::report {
namespace {

using report_test::kH200;
using report_test::TraceText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Program {
  double loader = 10;
  /// The kernel of the products.
  const char* product = "nvjet_tst_128x256_64x4";
  /// Time of each kernel that changes the memory format for them, and between products that the host is late.
  double memory_format = 0, late = 0;
  bool fp32 = false, sync = false, pageable = false, tiny = false, checkpoint = false, grows = false;
};

// Steps of a millisecond: products on tensor cores that keep the device busy.
TraceText trace_of(const Program& program, int steps = 4) {
  TraceText trace;
  trace.devices(kH200);
  int id = 1;
  double device = 0;
  for (int step = 0; step < steps; ++step) {
    double at = 1000.0 * step;
    trace.annotation("ProfilerStep#" + std::to_string(step), at, 1000, id++);
    trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, program.loader, id++);
    at += program.loader + 2;
    const auto copy = program.pageable ? "Memcpy HtoD (Pageable -> Device)" : "Memcpy HtoD (Pinned -> Device)";
    const double held = program.pageable ? 60 : 4;
    trace.op("aten::copy_", at, held + 2, id).call("cudaMemcpyAsync", at + 1, held, id, id);
    device = std::max(device, at + 3);
    trace.device("gpu_memcpy", copy, device, held - 1, id, id, "\"bytes\": 1000000");
    device += held;
    at += held + 4;
    ++id;
    const int products = 8;
    const double length = program.tiny ? 20 : (985 - program.loader - held) / products - program.late;
    for (int i = 0; i < products; ++i) {
      const double gap = program.tiny ? 100 : program.late > 0 ? length + program.late : 8;
      trace.op("aten::mm", at, 7, id).call("cudaLaunchKernel", at + 1, 5, id, id);
      device = std::max(device, at + 6);
      const double format = program.memory_format;
      if (format > 0) trace.kernel("void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16>", device, format, id, id, 2, 40);
      trace.kernel(program.fp32 ? "ampere_sgemm_128x64_tn" : program.product, device + format, length - format, id, id,
                   2, 40);
      device += length;
      ++id;
      at += gap;
      if (program.sync && i == 3) {
        trace.op("aten::item", at, device - at + 10, id).call("cudaStreamSynchronize", at + 2, device - at + 5, id, id);
        at = device + 60;
        ++id;
      }
    }
    if (program.checkpoint) trace.annotation("save_checkpoint", 1000.0 * step + 700, 250, id++);
    const int64_t allocated = 1'000'000'000 + (program.grows ? step * 10'000'000 : 0);
    trace.memory(1000.0 * step + 500, 1024, 1, allocated);
    trace.memory(1000.0 * step + 510, -1024, 1, allocated);
  }
  return trace;
}

TraceReport report_of(const Program& program) {
  return report_trace(read_trace_text(trace_of(program).text()));
}

std::vector<std::string> ids_of(const TraceReport& report) {
  std::vector<std::string> ids;
  for (const auto& row : report.recommendations) ids.push_back(row.id);
  return ids;
}

const Recommendation& find(const TraceReport& report, const std::string& id) {
  for (const auto& row : report.recommendations) {
    if (row.id == id) return row;
  }
  throw std::runtime_error("no " + id);
}

TEST(Faults, CleanProgramGetsNone) {
  EXPECT_THAT(ids_of(report_of({})), IsEmpty());
}

TEST(Faults, SlowLoader) {
  const auto report = report_of({.loader = 300});
  EXPECT_THAT(ids_of(report), ElementsAre("slow_loader"));
  EXPECT_NEAR(*report.recommendations[0].cost_ms, 0.3, 0.02);
  EXPECT_THAT(report.recommendations[0].option, HasSubstr("num_workers"));
}

TEST(Faults, SyncInTheStep) {
  const auto report = report_of({.sync = true});
  EXPECT_THAT(ids_of(report), ElementsAre("sync_in_step"));
  EXPECT_NEAR(*report.recommendations[0].cost_ms, 0.066, 0.01);
  EXPECT_THAT(report.recommendations[0].evidence, HasSubstr("aten::item"));
}

TEST(Faults, TensorsOfTheCpu) {
  const auto report = report_of({.pageable = true});
  EXPECT_THAT(ids_of(report), ElementsAre("cpu_tensors"));
  EXPECT_NEAR(*report.recommendations[0].cost_ms, 0.061, 0.01);
}

TEST(Faults, ProductsInFloat) {
  const auto report = report_of({.fp32 = true});
  EXPECT_THAT(ids_of(report), ElementsAre("fp32_matmul"));
  EXPECT_THAT(report.recommendations[0].evidence, HasSubstr("100 %"));
  EXPECT_NEAR(*report.recommendations[0].cost_ms, 0.97 * 0.75, 0.02);
}

// Kernels of cuDNN and cuBLAS; those in 16 bits are clean.
TEST(Faults, ProductsInTf32) {
  for (const auto* kernel : {"sm90_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32",
                             "cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", "nvjet_sss_128x256_TNT"}) {
    const auto report = report_of({.product = kernel});
    EXPECT_THAT(ids_of(report), ElementsAre("tf32_matmul")) << kernel;
    EXPECT_NEAR(*report.recommendations[0].cost_ms, 0.97 / 2, 0.02);
    EXPECT_THAT(report.recommendations[0].option, HasSubstr("bf16-mixed"));
  }
  for (const auto* kernel : {"sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc",
                             "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn"})
    EXPECT_THAT(ids_of(report_of({.product = kernel})), IsEmpty()) << kernel;
}

TEST(Faults, MemoryFormatOfImages) {
  const auto report = report_of({.memory_format = 20});
  EXPECT_THAT(ids_of(report), ElementsAre("memory_format"));
  EXPECT_NEAR(*report.recommendations[0].cost_ms, 0.16, 1e-6);
  EXPECT_THAT(report.recommendations[0].option, HasSubstr("channels_last"));
}

TEST(Faults, HostBetweenKernels) {
  const auto report = report_of({.late = 20});
  EXPECT_THAT(ids_of(report), ElementsAre("host_bound"));
  EXPECT_NEAR(*report.recommendations[0].cost_ms, 0.16, 0.03);
  EXPECT_THAT(report.recommendations[0].option, HasSubstr("compile"));
}

TEST(Faults, TinyBatches) {
  const auto report = report_of({.tiny = true});
  EXPECT_THAT(ids_of(report), ElementsAre("tiny_batch"));
  EXPECT_GT(*report.recommendations[0].cost_ms, 0.5);
}

TEST(Faults, CheckpointsTooOften) {
  const auto report = report_of({.checkpoint = true});
  EXPECT_NEAR(*find(report, "checkpoint_often").cost_ms, 0.25, 0.01);
}

TEST(Faults, MemoryThatGrows) {
  const auto report = report_of({.grows = true});
  EXPECT_THAT(ids_of(report), ElementsAre("memory_grows"));
  EXPECT_THAT(report.recommendations[0].evidence, HasSubstr("10.0 MB more"));
  EXPECT_TRUE(report.recommendations[0].cost_ms);
}

TEST(Faults, MemoryAtTheLimit) {
  TraceText trace = trace_of({});
  trace.memory(3600, 1, 9, 145'000'000'000);
  EXPECT_THAT(ids_of(report_trace(read_trace_text(trace.text()))), ElementsAre("memory_limit"));
  // A peak of the CPU is none of the device.
  TraceText cpu = trace_of({});
  cpu.memory(3600, 1, 9, 145'000'000'000, -1);
  EXPECT_THAT(ids_of(report_trace(read_trace_text(cpu.text()))), IsEmpty());
}

// Two ranks over Gloo: the second comes late to each collective.
TraceReport rank_of(int64_t rank, double late) {
  TraceText trace;
  trace.member("distributedInfo", "{\"backend\": \"gloo\", \"rank\": " + std::to_string(rank) + ", \"world_size\": 2}");
  for (int step = 0; step < 3; ++step) {
    const double at = 1000.0 * step;
    trace.annotation("ProfilerStep#" + std::to_string(step), at, 1000, 10 * step + 1);
    trace.op("aten::mm", at, 500 + late, 10 * step + 2);
    trace.op("gloo:all_reduce", at + 500 + late, 320 - late, 10 * step + 3,
             R"("Input Dims": [[1000]], "Input type": ["float"])");
  }
  return report_trace(read_trace_text(trace.text()));
}

TEST(Faults, AllReduceWaitsForASlowRank) {
  auto fast = rank_of(0, 0), slow = rank_of(1, 300);
  const auto view = view_distributed({&fast, &slow});
  ASSERT_TRUE(view);
  std::vector<TraceReport*> ranks{&fast, &slow};
  recommend_together(*view, ranks);
  const auto& row = find(fast, "slow_rank");
  EXPECT_NEAR(*row.cost_ms, 0.3, 1e-9);
  EXPECT_THAT(row.title, HasSubstr("rank 1"));
  EXPECT_THAT(ids_of(slow), ::testing::Not(::testing::Contains("slow_rank")));
  ASSERT_EQ(view->stragglers.size(), 1u);
  EXPECT_EQ(view->stragglers[0].rank, 1);
  EXPECT_EQ(view->stragglers[0].late, 900'000);
  EXPECT_EQ(view->operations[0].bytes, 12000);
  EXPECT_EQ(view->waiting[0].synchronizing, 900'000);
  EXPECT_EQ(view->waiting[0].transfer, 60'000);
}

TraceReport nccl_rank(int64_t rank, double kernel) {
  TraceText trace;
  trace.devices(R"([{"id": 0, "name": "NVIDIA H200"}])")
      .member("distributedInfo", "{\"backend\": \"nccl\", \"rank\": " + std::to_string(rank) + ", \"world_size\": 2}")
      .annotation("ProfilerStep#1", 0, 1000, 1)
      .op("nccl:all_reduce", 100, rank == 0 ? 50 : 40, 3)
      .call("cudaLaunchKernel", 110, 5, 3, 2)
      .kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 400, kernel, 3, 2);
  return report_trace(read_trace_text(trace.text()));
}

TEST(Collectives, TimesAreThoseOfTheKernelsAndBesideThemThoseOfThePlugin) {
  auto slow = nccl_rank(0, 300), fast = nccl_rank(1, 250);
  const auto view = view_distributed({&slow, &fast});
  ASSERT_TRUE(view);
  const auto& first = view->waiting.at(0);
  EXPECT_EQ(std::pair(first.transfer, first.synchronizing), std::pair(Ns{250'000}, Ns{50'000}));
  EXPECT_EQ(std::pair(first.tb_transfer, first.tb_synchronizing), std::pair(Ns{290'000}, Ns{60'000}));
  ASSERT_EQ(view->operations.size(), 2u);
  EXPECT_EQ(std::pair(view->operations[0].latency, view->operations[0].tb_latency),
            std::pair(Ns{300'000}, Ns{350'000}));
  EXPECT_EQ(std::pair(view->operations[1].latency, view->operations[1].tb_latency),
            std::pair(Ns{250'000}, Ns{290'000}));
  EXPECT_EQ(view->operations[0].tb_transfer, 290'000);
}

}  // namespace
}  // namespace levin::report
