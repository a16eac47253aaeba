#include "levin/profilers/memory_history.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/modules/linear.h>

#include "levin/core/files.h"
#include "levin/core/trace_span.h"
#include "levin/nn/unit.h"
#include "levin/optim/optim.h"
#include "levin/profilers/memory.h"
#include "levin/profilers/profile.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"

namespace levin {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

struct HeavyImpl : torch::nn::Module {
  explicit HeavyImpl(int64_t n) : fc(register_module("fc", torch::nn::Linear(n, n))) {}
  Tensor forward(const Tensor& x) { return fc(x).relu(); }
  torch::nn::Linear fc;
};
LEVIN_MODULE(Heavy);

struct HeavyNetImpl : torch::nn::Module {
  HeavyNetImpl() : small(register_module("small", Heavy(16))), large(register_module("large", Heavy(128))) {}
  Tensor forward(const Tensor& x) { return small(x.narrow(1, 0, 16)).sum() + large(x).sum(); }
  Heavy small, large;
};
LEVIN_MODULE(HeavyNet);

std::map<std::string, int64_t> by_name(const std::vector<MemoryHolder>& holders) {
  std::map<std::string, int64_t> bytes;
  for (const auto& holder : holders) bytes[holder.name] = holder.bytes;
  return bytes;
}

struct MemoryHistoryTest : testing::FolderTest {
  HeavyNet net;
};

TEST_F(MemoryHistoryTest, KnowsWhoHoldsMemory) {
  optim::Adam optimizer(net->parameters());
  MemoryHistory history(at::kCPU);
  history.watch(*net);
  const auto x = at::ones({32, 128});
  auto loss = net(x);
  auto held = by_name(history.holders());
  EXPECT_EQ(held["large.fc (parameters)"], 4 * (128 * 128 + 128));
  EXPECT_EQ(held["small.fc (parameters)"], 4 * (16 * 16 + 16));
  EXPECT_EQ(held["large"], 2 * 4 * 32 * 128 - 4 * 32 * 128) << "relu keeps its result, the product is free";
  loss.backward();
  loss.reset();
  held = by_name(history.holders());
  EXPECT_EQ(held["large (backward)"], 4 * (128 * 128 + 128)) << "the gradients";
  EXPECT_FALSE(held.contains("large"));
  optimizer.step();
  EXPECT_GE(by_name(history.holders())["Optimizer.step#Adam.step"], 2 * 4 * (128 * 128 + 128));
  EXPECT_GE(history.peak(), history.allocated());
  const auto peak = history.holders_at_peak();
  int64_t sum = 0;
  for (const auto& holder : peak) sum += holder.bytes;
  EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(history.peak()),
              0.02 * static_cast<double>(history.peak()));
}

TEST_F(MemoryHistoryTest, WritesASnapshot) {
  {
    MemoryHistory history(at::kCPU, {.max_entries = 50});
    history.watch(*net);
    net(at::ones({32, 128})).backward();
    history.write_snapshot(folder_ / "snapshot.pickle");
    EXPECT_THAT(error_of([] { MemoryHistory second(at::kCPU); }), HasSubstr("one at a time"));
  }
  EXPECT_FALSE(TraceSpan::is_recorded()) << "the history is over";
  const auto bytes = read_file(folder_ / "snapshot.pickle");
  const auto root = torch::jit::unpickle(bytes.data(), bytes.size()).toGenericDict();
  const auto traces = root.at("device_traces").toList();
  ASSERT_EQ(traces.size(), 1);
  const auto trace = traces.get(0).toList();
  EXPECT_GT(trace.size(), 10);
  bool unit = false, backward = false;
  for (c10::IValue entry : trace) {
    const auto fields = entry.toGenericDict();
    for (const auto* key : {"action", "addr", "size", "stream", "time_us", "frames"}) EXPECT_TRUE(fields.contains(key));
    for (c10::IValue each : fields.at("frames").toList()) {
      const auto frame = each.toGenericDict();
      unit |= frame.at("name").toStringRef() == "nn.Module: Heavy_1" && frame.at("filename").toStringRef() == "large";
      backward |= frame.at("name").toStringRef() == "AddmmBackward0" && frame.at("filename").toStringRef() == "large";
    }
  }
  EXPECT_TRUE(unit);
  EXPECT_TRUE(backward);
  for (c10::IValue each : root.at("segments").toList()) {
    const auto segment = each.toGenericDict();
    int64_t blocks = 0;
    for (c10::IValue block : segment.at("blocks").toList()) blocks += block.toGenericDict().at("size").toInt();
    EXPECT_EQ(blocks, segment.at("total_size").toInt());
  }
}

TEST_F(MemoryHistoryTest, TellsBeforeMemoryRunsOut) {
  MemoryProfiler profiler({.dirpath = folder_});
  profiler.begin_loop({.module = net.get(), .device = at::kCPU});
  const auto said = testing::captured_stderr([&] {
    const auto kept = at::ones({1 << 20});
    EXPECT_THROW(at::empty({int64_t{1} << 58}), c10::Error);
  });
  EXPECT_THAT(said, HasSubstr("out of memory: cpu has no room for"));
  EXPECT_THAT(said, HasSubstr("aten::ones"));
  EXPECT_THAT(said, HasSubstr("large.fc (parameters)"));
  ASSERT_EQ(profiler.files().size(), 1);
  EXPECT_TRUE(std::filesystem::exists(profiler.files()[0]));
  profiler.end_loop();
  EXPECT_EQ(profiler.files().size(), 2);
  EXPECT_THAT(profiler.summary(), HasSubstr("Memory Report"));
}

}  // namespace
}  // namespace levin
