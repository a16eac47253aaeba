#include "levin/profilers/profile.h"

#include <chrono>
#include <regex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "levin/core/trace_span.h"
#include "levin/data/loader.h"
#include "levin/nn/unit.h"
#include "levin/optim/optim.h"
#include "levin/profilers/simple.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "tests/profilers/trace_json.h"

namespace levin {
namespace {

using profilers::Profile;
using namespace profilers_test;
using testing::error_of;
using ::testing::HasSubstr;

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(int64_t n) : fc(register_module("fc", torch::nn::Linear(n, n))) {}
  Tensor forward(const Tensor& x) { return fc(x).relu(); }
  torch::nn::Linear fc;
};
LEVIN_MODULE(Layer);

struct StackImpl : torch::nn::Module {
  StackImpl() : first(register_module("first", Layer(16))), last(register_module("last", Layer(16))) {}
  Tensor forward(const Tensor& x) { return last(first(x)); }
  Layer first, last;
};
LEVIN_MODULE(Stack);

struct ModelImpl : torch::nn::Module {
  ModelImpl() : stack(register_module("stack", Stack())) {}
  Tensor forward(const Tensor& x) { return stack(x); }
  Stack stack;
};
LEVIN_MODULE(Model);

const std::string kLayer0 = "stack.first", kLayer1 = "stack.last";

struct ProfileTest : testing::FolderTest {
  Model model;
  optim::Adam optimizer{model->parameters()};
  DataLoader<Batch> loader =
      make_loader(TensorDataset({{"x", at::ones({40, 16})}}), {.batch_size = 4, .num_workers = 2});

  void train(Profile& profile) {
    profile.watch(*model);
    profile.start();
    for (auto& batch : loader) {
      auto x = batch["x"].clone().requires_grad_();
      model(x * 2).sum().backward();
      optimizer.step();
      optimizer.zero_grad();
      profile.step();
    }
    profile.stop();
  }
};

// The first of the file: Kineto asks once in a process.
TEST_F(ProfileTest, SaysNothing) {
  const auto log = testing::captured_stderr([&] {
    Profile profile({.schedule = std::nullopt, .dirpath = folder_});
    profile.start();
    at::ones({2, 2}).sum();
    profile.stop();
  });
  EXPECT_EQ(log, "");
}

TEST_F(ProfileTest, WritesTracesThatToolsKnow) {
  Profile profile({.schedule = ProfilerSchedule{.wait = 1, .warmup = 1, .active = 2, .repeat = 2},
                   .record_shapes = true,
                   .profile_memory = true,
                   .with_flops = true,
                   .dirpath = folder_});
  train(profile);
  ASSERT_EQ(profile.files().size(), 2);
  EXPECT_EQ(profile.recordings(), 2);
  for (const auto& file : profile.files())
    EXPECT_TRUE(std::regex_match(file.filename().string(), std::regex(R"(.+_\d+\.\d+\.pt\.trace\.json\.gz)"))) << file;
  EXPECT_LT(profile.files()[0], profile.files()[1]);
  size_t left = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++left;
  EXPECT_EQ(left, 2) << "a file of the writer is left";

  const auto trace = read_trace(profile.files()[1]);
  const auto steps = spans(trace, "ProfilerStep#");
  ASSERT_EQ(steps.size(), 2);
  EXPECT_EQ(steps[0]["name"], "ProfilerStep#6");
  EXPECT_EQ(steps[1]["name"], "ProfilerStep#7");
  for (const auto* name : {"enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "Optimizer.step#Adam.step",
                           "Optimizer.zero_grad#Adam.zero_grad"}) {
    const auto found = spans(trace, name);
    ASSERT_EQ(found.size(), 2) << name;
    EXPECT_TRUE(is_inside(found[0], steps[0])) << name;
    EXPECT_TRUE(is_inside(found[1], steps[1])) << name;
  }
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == "X") {
      EXPECT_TRUE(event["ts"].is_number() && event["dur"].is_number()) << event;
    }
  EXPECT_EQ(trace["distributedInfo"]["world_size"], 1);
  EXPECT_TRUE(trace["levin"].contains("version"));
  EXPECT_FALSE(spans(trace, "aten::addmm").at(0)["args"]["Input Dims"].empty());
}

TEST_F(ProfileTest, UnitsAreModulesInForwardAndBackward) {
  Profile profile(
      {.schedule = ProfilerSchedule{.wait = 0, .warmup = 0, .active = 2}, .dirpath = folder_, .gzip = false});
  train(profile);
  const auto trace = read_trace(profile.files().at(0));
  const auto modules = spans(trace, "nn.Module: ", "python_function");
  ASSERT_EQ(modules.size(), 6);
  const auto &stack = modules[0], &first = modules[1], &last = modules[2];
  EXPECT_EQ(stack["name"], "nn.Module: Stack_0");
  EXPECT_EQ(first["name"], "nn.Module: Layer_0");
  EXPECT_EQ(last["name"], "nn.Module: Layer_1");
  EXPECT_EQ(last["args"]["Unit"], kLayer1);
  EXPECT_TRUE(stack["args"]["Python parent id"].is_null());
  EXPECT_EQ(first["args"]["Python parent id"], stack["args"]["Python id"]);
  EXPECT_EQ(last["args"]["Python parent id"], stack["args"]["Python id"]);
  EXPECT_EQ(modules[4]["args"]["Python module id"], first["args"]["Python module id"]);
  EXPECT_NE(modules[4]["args"]["Python id"], first["args"]["Python id"]);
  EXPECT_NE(first["args"]["Python module id"], last["args"]["Python module id"]);
  const auto linears = spans(trace, "aten::addmm");
  EXPECT_TRUE(is_inside(linears.at(0), first));
  EXPECT_TRUE(is_inside(linears.at(1), last));

  const auto backward = spans(trace, "nn.Module backward: ", "user_annotation");
  ASSERT_EQ(backward.size(), 6);
  EXPECT_EQ(backward[0]["args"]["Unit"], "stack");
  EXPECT_EQ(backward[1]["args"]["Unit"], kLayer1);
  EXPECT_EQ(backward[2]["args"]["Unit"], kLayer0);
  EXPECT_TRUE(is_inside(backward[1], backward[0]));
  EXPECT_TRUE(is_inside(backward[2], backward[0]));
  EXPECT_FALSE(is_inside(backward[2], backward[1]));
  const auto nodes = spans(trace, "autograd::engine::evaluate_function: AddmmBackward0");
  EXPECT_FALSE(is_inside(spans(trace, "autograd::engine::evaluate_function: SumBackward0").at(0), backward[0]));
  EXPECT_TRUE(is_inside(nodes.at(0), backward[1]));
  EXPECT_TRUE(is_inside(nodes.at(1), backward[2]));
  EXPECT_FALSE(is_inside(spans(trace, "Optimizer.step").at(0), backward[0]));
}

TEST_F(ProfileTest, LoaderThreadsAreThere) {
  Profile profile({.schedule = std::nullopt, .profile_memory = true, .dirpath = folder_});
  // A sample allocates.
  loader = make_loader(TensorDataset({{"x", at::ones({40, 16})}}), {.batch_size = 4, .num_workers = 2});
  train(profile);
  const auto trace = read_trace(profile.files().at(0));
  const auto work = spans(trace, "[DataLoader]finish_batch");
  ASSERT_GE(work.size(), 1);
  const auto main = spans(trace, "Optimizer.step").at(0)["tid"];
  EXPECT_NE(work[0]["tid"], main);
  bool on_main = false;
  for (const auto& event : trace["traceEvents"])
    if (event.value("name", "") == "[memory]") on_main |= event["tid"] == main;
  EXPECT_TRUE(on_main) << "memory events are lost";
  EXPECT_TRUE(spans(trace, "ProfilerStep#").empty()) << "without a schedule there are no steps";
}

TEST(TracedWork, RecordsAnotherThreadWithItsMemory) {
  testing::TemporaryFolder folder;
  Profile profile({.schedule = std::nullopt, .profile_memory = true, .dirpath = folder.path()});
  profile.start();
  std::thread([] {
    const TracedWork traced;
    const TraceSpan span("elsewhere");
    at::ones({1000});
  }).join();
  std::thread([] { const TraceSpan span("unseen"); }).join();
  profile.stop();
  const auto trace = read_trace(profile.files().at(0));
  const auto span = spans(trace, "elsewhere").at(0);
  EXPECT_TRUE(spans(trace, "unseen").empty());
  int64_t bytes = 0;
  for (const auto& event : trace["traceEvents"])
    if (event.value("name", "") == "[memory]" && event["tid"] == span["tid"])
      bytes += std::max<int64_t>(0, event["args"]["Bytes"].get<int64_t>());
  EXPECT_GE(bytes, 4000);
  const TracedWork after;
  EXPECT_FALSE(TraceSpan::is_recorded()) << "a recording that is over is joined";
}

TEST_F(ProfileTest, TableHasTorchsNumbers) {
  Profile profile(
      {.schedule = std::nullopt, .record_shapes = true, .with_flops = true, .on_trace_ready = [](Profile&) {}});
  profile.start();
  for (int i = 0; i < 3; ++i) at::addmm(at::ones({4}), at::ones({8, 16}), at::ones({16, 4}));
  at::addmm(at::ones({4}), at::ones({8, 8}), at::ones({8, 4}));
  profile.stop();
  EXPECT_TRUE(profile.files().empty());
  int64_t self = 0;
  const auto rows = profile.key_averages();
  for (const auto& row : rows) {
    self += row.self_cpu;
    EXPECT_LE(row.self_cpu, row.cpu_total) << row.name;
    if (row.name != "aten::addmm") continue;
    EXPECT_EQ(row.calls, 4);
    EXPECT_EQ(row.flops, 3 * 1024 + 512);
  }
  double percent = 0;
  for (const auto& row : rows) percent += 100.0 * static_cast<double>(row.self_cpu) / static_cast<double>(self);
  EXPECT_NEAR(percent, 100, 0.1);

  std::vector<int64_t> calls;
  for (const auto& row : profile.key_averages({.by_input_shape = true}))
    if (row.name == "aten::addmm") calls.push_back(row.calls);
  EXPECT_EQ(calls, (std::vector<int64_t>{3, 1}));
  const auto text = key_table(rows, {.sort_by = "flops", .row_limit = 1});
  EXPECT_THAT(text, HasSubstr("aten::addmm"));
  EXPECT_THAT(text, HasSubstr("Total KFLOPs"));
  EXPECT_THAT(text, HasSubstr("3.584"));
  EXPECT_THAT(text, HasSubstr("Self CPU time total: "));
  EXPECT_EQ(text.find("aten::ones"), std::string::npos);
  EXPECT_THAT(error_of([&] { key_table(rows, {.sort_by = "cpu_tiem"}); }), HasSubstr("did you mean \"cpu_time\"?"));
}

TEST_F(ProfileTest, TableByUnit) {
  Profile profile({.schedule = std::nullopt, .on_trace_ready = [](Profile&) {}, .group_by_unit = true});
  train(profile);
  for (const auto* name : {"aten::addmm", "AddmmBackward0"}) {
    std::map<std::string, int64_t> calls;
    for (const auto& row : profile.key_averages({.by_unit = true}))
      if (row.name == name) calls[row.unit] = row.calls;
    EXPECT_EQ(calls, (std::map<std::string, int64_t>{{kLayer0, 10}, {kLayer1, 10}})) << name;
  }
  EXPECT_THAT(profile.table(), HasSubstr("stack.first"));
}

TEST_F(ProfileTest, SpansOutliveRecordings) {
  Profile profile({.schedule = ProfilerSchedule{.wait = 0, .warmup = 0, .active = 1, .repeat = 0}, .dirpath = folder_});
  profile.start();
  {
    const TraceSpan crossing("crosses \"a\" recording");
    profile.step();
    at::ones({4});
  }
  profile.step();
  profile.stop();
  ASSERT_EQ(profile.files().size(), 3);
  EXPECT_TRUE(spans(read_trace(profile.files()[1]), "crosses").empty());
}

TEST_F(ProfileTest, RefusesWhatWouldCrash) {
  Profile profile({.schedule = std::nullopt, .dirpath = folder_});
  EXPECT_THAT(error_of([&] { profile.step(); }), HasSubstr("comes after start()"));
  EXPECT_THAT(error_of([&] { profile.table(); }), HasSubstr("nothing has been recorded"));
  profile.start();
  Profile second({.schedule = std::nullopt, .dirpath = folder_});
  EXPECT_THAT(error_of([&] { second.start(); }), HasSubstr("already"));
  std::string elsewhere;
  std::thread([&] { elsewhere = error_of([&] { profile.stop(); }); }).join();
  EXPECT_THAT(elsewhere, HasSubstr("by one thread"));
}

TEST_F(ProfileTest, SaysThatNothingWasRecorded) {
  const auto log = testing::captured_stderr([&] {
    Profile profile({.schedule = ProfilerSchedule{.wait = 5}, .dirpath = folder_});
    profile.start();
    profile.step();
    profile.stop();
  });
  EXPECT_THAT(log, HasSubstr("nothing was recorded: the run ended after 1 steps"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

/// Nanoseconds of one call, the best of some rounds.
template <class F>
double nanoseconds_of(F&& f) {
  using Clock = std::chrono::steady_clock;
  double best = 1e18;
  for (int round = 0; round < 7; ++round) {
    constexpr int kCalls = 2000;
    const auto begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) f();
    best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / kCalls);
  }
  return best;
}

TEST(ProfilerCost, SpansCostLittle) {
  EXPECT_LT(nanoseconds_of([] { const TraceSpan span("off"); }), 200);
  EXPECT_LT(nanoseconds_of([] { const TracedWork work; }), 50);
  SimpleProfiler profiler;
  const auto action = profiler.register_action("action");
  // A step of the Trainer has about 30 of them: 10 us are 1 % of a step of 1 ms.
  EXPECT_LT(30 * nanoseconds_of([&] { const Span span(&profiler, action); }), 10'000);
}

}  // namespace
}  // namespace levin
