// Traces of a GPU: kernels in every recording of a process, their operators, units and CUDA graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "levin/devices/accelerator.h"
#include "levin/fabric/fabric.h"
#include "levin/nn/unit.h"
#include "levin/optim/optim.h"
#include "levin/profilers/profile.h"
#include "levin/report/report.h"
#include "levin/testing/capture.h"
#include "levin/testing/gpu.h"
#include "levin/testing/temporary_folder.h"
#include "tests/profilers/trace_json.h"

namespace levin {
namespace {

using namespace profilers_test;
using profilers::Profile;
using ::testing::HasSubstr;

struct GpuLayerImpl : torch::nn::Module {
  explicit GpuLayerImpl(int64_t n) : fc(register_module("fc", torch::nn::Linear(n, n))) {}
  Tensor forward(const Tensor& x) { return fc(x).relu(); }
  torch::nn::Linear fc;
};
LEVIN_MODULE(GpuLayer);

struct GpuNetImpl : torch::nn::Module {
  GpuNetImpl() : first(register_module("first", GpuLayer(256))), last(register_module("last", GpuLayer(256))) {}
  Tensor forward(const Tensor& x) { return last(first(x)); }
  GpuLayer first, last;
};
LEVIN_MODULE(GpuNet);

struct ProfileGpu : testing::GpuTest {
  testing::TemporaryFolder folder;

  /// Runs 12 steps; recorded are 2 of the first 4, and 2 of the second.
  std::unique_ptr<Profile> train(bool compile) {
    Fabric fabric({.accelerator = "cuda", .devices = 1, .compile = compile ? CompileMode("graph") : CompileMode()});
    GpuNet net;
    auto [model, optimizer] = fabric.setup(net, optim::AdamW(net->parameters(), {.lr = 1e-3}));
    auto step = fabric.compile([&](const Tensor& x) {
      auto loss = model(x).square().mean();
      fabric.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      return loss;
    });
    auto profile = fabric.profile({.schedule = ProfilerSchedule{.wait = 3, .warmup = 1, .active = 2, .repeat = 2},
                                   .record_shapes = true,
                                   .profile_memory = true,
                                   .dirpath = folder.path()});
    const auto x = at::randn({64, 256}, fabric.device());
    profile->start();
    for (int i = 0; i < 12; ++i) {
      step(x);
      profile->step();
    }
    profile->stop();
    return profile;
  }
};

TEST_F(ProfileGpu, EveryRecordingHasKernels) {
  std::unique_ptr<Profile> profile;
  const auto said = testing::captured_stderr([&] { profile = train(false); });
  EXPECT_EQ(said.find("no kernels"), std::string::npos) << said;
  ASSERT_EQ(profile->files().size(), 2);
  std::vector<size_t> counts;
  for (const auto& file : profile->files()) {
    const auto trace = read_trace(file);
    const auto kernels = spans(trace, "", "kernel");
    counts.push_back(kernels.size());
    ASSERT_FALSE(kernels.empty());
    const auto& args = kernels[0]["args"];
    for (const auto* key : {"est. achieved occupancy %", "blocks per SM", "grid", "block", "stream", "correlation"})
      EXPECT_TRUE(args.contains(key)) << key;
    EXPECT_FALSE(trace["deviceProperties"].empty());
    EXPECT_EQ(spans(trace, "ProfilerStep#", "user_annotation").size(), 2);
    EXPECT_EQ(spans(trace, "nn.Module: GpuLayer_0", "python_function").size(), 2);
    EXPECT_EQ(spans(trace, "nn.Module backward: GpuLayer_0", "user_annotation").size(), 2);
    EXPECT_EQ(spans(trace, "Optimizer.step#AdamW.step").size(), 2);
    bool device_memory = false;
    for (const auto& event : trace["traceEvents"])
      if (event.value("name", "") == "[memory]") device_memory |= event["args"]["Device Type"] == 1;
    EXPECT_TRUE(device_memory);
  }
  // A library may take another algorithm, with a kernel more, once it is warm.
  EXPECT_NEAR(static_cast<double>(counts[0]), static_cast<double>(counts[1]), 0.1 * static_cast<double>(counts[0]));
}

TEST_F(ProfileGpu, TableCountsKernels) {
  const auto profile = train(false);
  int64_t of_operators = 0, of_kernels = 0;
  std::map<std::string, int64_t> by_unit;
  for (const auto& row : profile->key_averages({.by_unit = true})) {
    if (row.is_annotation) continue;
    (row.on_device ? of_kernels : of_operators) += row.self_device;
    if (row.name == "aten::addmm") by_unit[row.unit] += row.self_device;
  }
  EXPECT_GT(of_kernels, 0);
  // The kernel of an optimizer's step belongs to a span, not to an operator.
  EXPECT_LE(of_operators, of_kernels);
  EXPECT_GT(static_cast<double>(of_operators), 0.7 * static_cast<double>(of_kernels));
  EXPECT_GT(by_unit["first"], 0);
  EXPECT_GT(by_unit["last"], 0);
  EXPECT_THAT(profile->table(), HasSubstr("Self CUDA time total: "));
}

TEST_F(ProfileGpu, ReplayedGraphsKeepTheNamesOfKernels) {
  auto names = [&](bool compile) {
    const auto profile = train(compile);
    std::map<std::string, int> counts;
    const auto trace = read_trace(profile->files().at(1));
    if (compile) {
      EXPECT_FALSE(spans(trace, "cudaGraphLaunch").empty());
    }
    for (const auto& kernel : spans(trace, "", "kernel")) ++counts[kernel["name"]];
    return counts;
  };
  const auto eager = names(false), compiled = names(true);
  int shared = 0;
  for (const auto& [name, count] : eager) shared += compiled.contains(name);
  EXPECT_GE(shared, 3) << "kernels of a replay have other names";
}

/// Kernels by name and unit, of forward or of backward.
using KernelsOfUnits = std::map<std::pair<std::string, std::string>, int>;

/// By the span of a unit that the launch of the kernel lies in.
KernelsOfUnits eager_kernels(const Json& trace, const std::string& category, const std::string& spans_of) {
  std::map<int64_t, Json> launches;
  for (const auto& call : spans(trace, "cu"))  // cudaLaunchKernel, cuLaunchKernelEx
    if (call["args"].contains("correlation")) launches[call["args"]["correlation"]] = call;
  const auto units = spans(trace, spans_of, category);
  KernelsOfUnits counts;
  for (const auto& kernel : spans(trace, "", "kernel")) {
    const auto launch = launches.find(kernel["args"]["correlation"]);
    if (launch == launches.end()) continue;
    std::string unit;
    for (const auto& each : units)  // the innermost comes last
      if (is_inside(launch->second, each)) unit = each["args"]["Unit"];
    if (!unit.empty()) ++counts[{kernel["name"], unit}];
  }
  return counts;
}

KernelsOfUnits replayed_kernels(const Json& trace, const std::string& phase) {
  KernelsOfUnits counts;
  for (const auto& kernel : spans(trace, "", "kernel"))
    if (kernel["args"].value("Phase", "") == phase) ++counts[{kernel["name"], kernel["args"]["Unit"]}];
  return counts;
}

TEST_F(ProfileGpu, ReplayedGraphsKeepTheUnitsOfKernels) {
  const auto eager = read_trace(train(false)->files().at(1));
  const auto compiled_profile = train(true);
  const auto compiled = read_trace(compiled_profile->files().at(1));
  EXPECT_EQ(spans(compiled, "[CompiledStep]replay#", "user_annotation").size(), 2);
  const auto forward = replayed_kernels(compiled, "forward"), backward = replayed_kernels(compiled, "backward");
  ASSERT_FALSE(forward.empty());
  ASSERT_FALSE(backward.empty());
  EXPECT_EQ(forward, eager_kernels(eager, "python_function", "nn.Module: "));
  EXPECT_EQ(backward, eager_kernels(eager, "user_annotation", "nn.Module backward: "));
  // Those of the optimizer and of the loss belong to no unit.
  EXPECT_LT(forward.size() + backward.size(), spans(compiled, "", "kernel").size());
  // And the report has them.
  const auto report = report::make_report({compiled_profile->files().at(1)});
  std::map<std::string, report::Ns> times;
  for (const auto& row : report.traces.at(0).modules) times[row.name] = row.device_total();
  EXPECT_GT(times["first"], 0);
  EXPECT_GT(times["last"], 0);
}

}  // namespace
}  // namespace levin
