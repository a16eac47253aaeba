// The history of CUDA's allocator: who holds memory, snapshots, and the dump before out of memory.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/modules/linear.h>

#include "levin/core/files.h"
#include "levin/devices/accelerator.h"
#include "levin/nn/unit.h"
#include "levin/profilers/memory.h"
#include "levin/profilers/profile.h"
#include "levin/testing/capture.h"
#include "levin/testing/gpu.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

using ::testing::HasSubstr;

struct WideImpl : torch::nn::Module {
  explicit WideImpl(int64_t n) : fc(register_module("fc", torch::nn::Linear(n, n))) {}
  Tensor forward(const Tensor& x) { return fc(x).relu(); }
  torch::nn::Linear fc;
};
LEVIN_MODULE(Wide);

struct WideNetImpl : torch::nn::Module {
  WideNetImpl() : wide(register_module("wide", Wide(1024))) {}
  Tensor forward(const Tensor& x) { return wide(x); }
  Wide wide;
};
LEVIN_MODULE(WideNet);

struct MemoryHistoryGpu : testing::GpuTest {
  testing::TemporaryFolder folder;
  const c10::Device device{c10::DeviceType::CUDA, 0};
};

TEST_F(MemoryHistoryGpu, KnowsWhoHoldsMemory) {
  WideNet net;
  net->to(device);
  const auto x = at::ones({512, 1024}, device);
  net(x).sum().backward();  // the workspace of products is nobody's
  net->zero_grad();
  MemoryHistory history(device);
  history.watch(*net);
  auto loss = net(x).sum();
  std::map<std::string, int64_t> held;
  for (const auto& holder : history.holders()) held[holder.name] = holder.bytes;
  EXPECT_EQ(held["wide"], 4 * 512 * 1024);
  EXPECT_GE(held["wide.fc (parameters)"], 4 * 1024 * 1024);
  loss.backward();
  for (const auto& holder : history.holders()) held[holder.name] = holder.bytes;
  EXPECT_GE(held["wide (backward)"], 4 * 1024 * 1024) << "the gradients";
  history.write_snapshot(folder.path() / "snapshot.pickle");
  const auto bytes = read_file(folder.path() / "snapshot.pickle");
  const auto root = torch::jit::unpickle(bytes.data(), bytes.size()).toGenericDict();
  EXPECT_FALSE(root.at("segments").toList().empty());
  bool labelled = false;
  for (const c10::IValue& segment : root.at("segments").toList())
    for (const c10::IValue& block : segment.toGenericDict().at("blocks").toList())
      labelled |= !block.toGenericDict().at("frames").toList().empty();
  EXPECT_TRUE(labelled) << "no block has its operators";
  EXPECT_GT(root.at("device_traces").toList().get(0).toList().size(), 5);
}

TEST_F(MemoryHistoryGpu, TellsBeforeMemoryRunsOut) {
  WideNet net;
  net->to(device);
  MemoryProfiler profiler({.dirpath = folder.path()});
  profiler.begin_loop({.module = net.get(), .device = device});
  const auto said = testing::captured_stderr([&] {
    const auto kept = at::ones({1 << 20}, device);
    EXPECT_THROW(at::empty({int64_t{1} << 42}, at::TensorOptions().device(device)), c10::OutOfMemoryError);
  });
  EXPECT_THAT(said, HasSubstr("has no room for"));
  EXPECT_THAT(said, HasSubstr("wide.fc (parameters)"));
  ASSERT_EQ(profiler.files().size(), 1);
  profiler.end_loop();
  // A second history in the same process hears of allocations too.
  MemoryHistory second(device);
  const auto before = second.allocated();
  const auto more = at::ones({1 << 20}, device);
  EXPECT_GE(second.allocated() - before, 4 << 20);
}

}  // namespace
}  // namespace levin
