// Call stacks of C++ code: flame graphs, tables, traces, snapshots of memory.
#include "levin/profilers/stacks/stacks.h"

#include <ctime>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "levin/profilers/memory_history.h"
#include "levin/profilers/memory_snapshot.h"
#include "levin/profilers/profile.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"

namespace levin {
namespace {

using profilers::Profile;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

[[gnu::noinline]] at::Tensor planted_slow_function() {
  const auto x = at::ones({256, 256}) / 256;
  auto y = x;
  for (int i = 0; i < 20; ++i) y = at::mm(y, x);
  return y + 1;
}
[[gnu::noinline]] at::Tensor planted_quick_function(const at::Tensor& x) {
  return at::mm(x, x) + 2;
}
[[gnu::noinline]] at::Tensor planted_layer(torch::nn::Linear& layer, const at::Tensor& x) {
  return layer->forward(x);
}

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct StacksTest : testing::FolderTest {
  torch::nn::Linear layer{torch::nn::LinearOptions(64, 64)};
  at::Tensor x = at::ones({64, 64}) / 64;

  std::unique_ptr<Profile> record(PyTorchProfilerOptions options) {
    options.schedule = std::nullopt;
    options.dirpath = folder_ / "out";
    options.filename = "w";
    options.gzip = false;
    auto profile = std::make_unique<Profile>(std::move(options));
    planted_layer(layer, x).sum().backward();  // what is made once is not counted
    profile->start();
    planted_slow_function();
    planted_quick_function(x);
    planted_layer(layer, x).sum().backward();
    profile->stop();
    return profile;
  }
};

TEST_F(StacksTest, SlowFunctionIsOnTopOfTheFlameGraph) {
  const auto profile = record({.with_stack = true, .export_to_flame_graph = true});
  auto file = profile->files().at(0).string();
  file.replace(file.find(".pt.trace.json"), std::string::npos, ".stacks");
  std::istringstream lines(text_of(file));
  std::string first;
  std::getline(lines, first);
  // "main;...;planted_slow_function 1234": the place of the calls is the last frame of the longest line.
  const auto leaf = first.substr(first.rfind(';') + 1);
  EXPECT_THAT(leaf, HasSubstr("planted_slow_function"));
  EXPECT_THAT(leaf, MatchesRegex(".* [0-9]+"));
  EXPECT_THAT(first, HasSubstr("main"));
  EXPECT_THAT(first, Not(HasSubstr("at::_ops")));
  EXPECT_THAT(testing::error_of([&] { profile->export_stacks(folder_ / "a", "time"); }),
              HasSubstr("self_cpu_time_total"));
  EXPECT_THAT(testing::error_of([&] { record({})->export_stacks(folder_ / "a"); }), HasSubstr("with_stack = true"));
}

TEST_F(StacksTest, RowsByPlace) {
  const auto profile = record({.with_stack = true, .group_by_stack_n = 1});
  const auto calls = [&](int64_t frames, const char* name, const char* place) {
    int64_t sum = 0;
    for (const auto& row : profile->key_averages({.by_stack = frames}))
      if (row.name == name && row.stack.find(place) != std::string::npos) sum += row.calls;
    return sum;
  };
  EXPECT_EQ(calls(1, "aten::mm", "planted_slow_function"), 20);
  EXPECT_EQ(calls(1, "aten::mm", "planted_quick_function"), 1);
  // An operator inside another one has its stack.
  EXPECT_EQ(calls(100, "aten::addmm", "planted_layer"), 1);
  EXPECT_THAT(profile->table(), HasSubstr("Source Location"));
  EXPECT_THAT(profile->table(), HasSubstr("planted_slow_function"));
}

TEST_F(StacksTest, BackwardHasTheStackOfItsForward) {
  const auto profile = record({.with_stack = true});
  std::vector<std::string> stacks;
  for (const auto& row : profile->key_averages({.by_stack = 100}))
    if (row.name == "AddmmBackward0") stacks.push_back(row.stack);
  ASSERT_EQ(stacks.size(), 1u);
  EXPECT_THAT(stacks[0], HasSubstr("planted_layer"));
  EXPECT_THAT(stacks[0], EndsWith(";backward"));
}

TEST_F(StacksTest, TraceHasCallStacks) {
  const auto with = text_of(record({.with_stack = true})->files().at(0));
  const auto at = with.find("\"Call stack\": \"");
  ASSERT_NE(at, std::string::npos);
  const auto stack = with.substr(at + 15, with.find('"', at + 15) - at - 15);
  EXPECT_THAT(stack, HasSubstr("planted_slow_function"));
  // With debug information the line, else the program.
  const auto innermost = stack.substr(0, stack.find(';'));
  EXPECT_THAT(innermost, AnyOf(MatchesRegex(".*\\.(cpp|h)\\([0-9]+\\): .*planted_slow_function"),
                               MatchesRegex("[^/]*: .*planted_slow_function")));
  EXPECT_THAT(text_of(record({})->files().at(0)), Not(HasSubstr("Call stack")));
}

TEST(Stacks, FoldedLinesBeginWithTheOutermostFrame) {
  EXPECT_EQ(detail::folded_stack("a.cpp(3): f;b.cpp(4): g;main: main"), "main:_main;b.cpp(4):_g;a.cpp(3):_f");
  EXPECT_EQ(detail::folded_stack("one"), "one");
  EXPECT_EQ((detail::StackFrame{.function = "f", .file = "a.cpp", .line = 3}.text()), "a.cpp(3): f");
  EXPECT_EQ((detail::StackFrame{.function = "f", .file = "liba.so", .line = 0}.text()), "liba.so: f");
}

TEST_F(StacksTest, SnapshotsNameTheFunctionThatAllocates) {
  const auto snapshot_with = [&](bool stacks) {
    MemoryHistory history(c10::kCPU, {.with_stack = stacks});
    const auto kept = planted_quick_function(x);
    history.write_snapshot(folder_ / "snapshot.pickle");
    return text_of(folder_ / "snapshot.pickle");
  };
  EXPECT_THAT(snapshot_with(true), HasSubstr("planted_quick_function"));
  EXPECT_THAT(snapshot_with(false), Not(HasSubstr("planted_quick_function")));
}

// Time of the processor, the least of several recordings of each kind, in turns: other processes make single ones
// longer.
TEST_F(StacksTest, CostLittle) {
  torch::nn::Linear wide(torch::nn::LinearOptions(256, 256));
  const auto input = at::ones({128, 256});
  const auto time_of = [&](bool stacks) {
    Profile profile({.schedule = std::nullopt, .with_stack = stacks, .on_trace_ready = [](Profile&) {}});
    profile.start();
    const auto begin = std::clock();
    for (int i = 0; i < 10; ++i) {
      auto y = input;
      for (int k = 0; k < 12; ++k) y = planted_layer(wide, y).relu();
      y.sum().backward();
    }
    const auto time = static_cast<double>(std::clock() - begin);
    profile.stop();
    return time;
  };
  double with = 1e18, without = 1e18;
  for (int i = 0; i < 6; ++i) {
    without = std::min(without, time_of(false));
    with = std::min(with, time_of(true));
  }
  EXPECT_LT(with, 1.3 * without) << with / without;
  RecordProperty("ratio", std::to_string(with / without));
}

}  // namespace
}  // namespace levin
