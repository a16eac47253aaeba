// Whole files out of sharded states: what they cost while they are written, and who can read them.
#include <chrono>
#include <cstdlib>

#include <sys/wait.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/module_state.h"
#include "levin/core/files.h"
#include "levin/devices/memory_counter.h"
#include "levin/distributed/traffic.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/python.h"
#include "levin/testing/ranks.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::run_ranks;

constexpr int64_t kRows = 300, kColumns = 500, kTensors = 6;
constexpr int64_t kWhole = kRows * kColumns * 4;

/// The i-th tensor counts up in steps of i + 1.
Tensor counted(int64_t i) {
  return (torch::arange(kRows * kColumns, at::kFloat) * static_cast<double>(i + 1)).reshape({kRows, kColumns});
}

/// This rank's rows of every tensor; whole ones without a group.
struct Counted {
  explicit Counted(Collective* group, bool filled = true) {
    if (group) shards = std::make_unique<TensorShards>(*group);
    const int64_t rows = group ? kRows / group->size() : kRows;
    const int64_t start = group ? rows * group->rank() : 0;
    for (int64_t i = 0; i < kTensors; ++i) {
      auto part = filled ? counted(i).narrow(0, start, rows).clone() : torch::zeros({rows, kColumns});
      part = net->register_parameter(fmt::format("layer{}", i), part);
      if (group) shards->add(part, {.sizes = {kRows, kColumns}, .start = start});
    }
    net->register_buffer("sixteen", torch::full({3}, 0.5).to(at::kBFloat16));
  }
  bool is_right() const {
    for (int64_t i = 0; i < kTensors; ++i) {
      const auto part = net->named_parameters()[fmt::format("layer{}", i)];
      const auto* place = shards ? shards->find(part) : nullptr;
      if (!torch::equal(part, counted(i).narrow(0, place ? place->start : 0, part.size(0)))) return false;
    }
    return true;
  }
  State state() { return {{"model", net}}; }

  std::shared_ptr<torch::nn::Module> net = std::make_shared<torch::nn::Module>();
  std::unique_ptr<TensorShards> shards;
};

using FullTest = testing::FolderTest;

TEST_F(FullTest, OneTensorAtATimeIsUnshardedAndOnlyOnRankZero) {
  run_ranks(3, [&](Collective& group) {
    Counted here(&group);
    const MemoryCounter counter;
    save_checkpoint(folder_ / "full", here.state(), {.shards = here.shards.get(), .full = true});
    EXPECT_LT(counter.peak(), (group.rank() == 0 ? kWhole : 0) + kWhole / 4);
  });
  run_ranks(3, [&](Collective& group) {
    Counted here(&group);
    here.shards->set_saves_full(true);
    save_checkpoint(folder_ / "by the map", here.state(), {.world_size = 3, .shards = here.shards.get()});
  });
  save_checkpoint(folder_ / "one", Counted(nullptr).state());
  for (const char* name : {"model.safetensors", "state.json"}) {
    EXPECT_EQ(read_file(folder_ / "full" / name), read_file(folder_ / "one" / name));
    EXPECT_EQ(read_file(folder_ / "by the map" / name), read_file(folder_ / "one" / name));
  }
}

TEST_F(FullTest, AFullFileLoadsIntoShardsWithoutBeingFullAnywhere) {
  save_checkpoint(folder_ / "one", Counted(nullptr).state());
  run_ranks(3, [&](Collective& group) {
    for (const char* from : {"one", "one/model.safetensors"}) {
      Counted here(&group, /*filled=*/false);
      {
        const MemoryCounter counter;
        load_raw(folder_ / from, here.net, {.shards = here.shards.get()});
        EXPECT_LT(counter.peak(), kWhole / 4) << from;
      }
      EXPECT_TRUE(here.is_right()) << from;
    }
  });
}

TEST_F(FullTest, ConsolidatingTakesOneTensorAndReportsProgress) {
  run_ranks(3, [&](Collective& group) {
    Counted here(&group);
    save_checkpoint(folder_ / "parts", here.state(), {.shards = here.shards.get()});
  });
  std::vector<std::pair<uint64_t, uint64_t>> told;
  {
    const MemoryCounter counter;
    consolidate_checkpoint(folder_ / "parts", folder_ / "whole",
                           {.progress = [&](uint64_t done, uint64_t all) { told.emplace_back(done, all); }});
    EXPECT_LT(counter.peak(), kWhole + kWhole / 4);
  }
  const uint64_t bytes = kTensors * kWhole + 6;
  ASSERT_EQ(told.size(), 3u * kTensors + 1 + kTensors + 1);
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  EXPECT_EQ(told.back(), (std::pair{2 * bytes, 2 * bytes}));
}

/// What a rank sends for many small tensors does not grow with their number. LEVIN_MANY_RANKS=64: on as many ranks.
TEST_F(FullTest, SmallTensorsTravelTogether) {
  constexpr int kMany = 200;
  const char* asked = std::getenv("LEVIN_MANY_RANKS");
  const int world = asked ? std::atoi(asked) : 5;
  run_ranks(world, [&](Collective& group) {
    at::set_num_threads(1);
    TensorShards shards(group);
    torch::nn::Module net;
    const auto whole = [&](int i) {
      return torch::arange(3.0 * world + i % 7).mul(i + 1).reshape({-1, 1}).repeat({1, 4});
    };
    for (int i = 0; i < kMany; ++i) {
      const auto full = whole(i);
      const auto each = (full.size(0) + world - 1) / world, start = std::min(full.size(0), each * group.rank());
      const auto rows = std::min(full.size(0), start + each) - start;
      const auto part = net.register_parameter(fmt::format("p{}", i), full.narrow(0, start, rows).clone());
      shards.add(part, {.sizes = full.sizes().vec(), .start = start});
    }
    for (const bool rank0_only : {true, false}) {
      group.barrier();
      const auto begun = std::chrono::steady_clock::now();
      const auto before = traffic(group);
      const auto state = full_state_dict(net, shards, {.rank0_only = rank0_only});
      const auto sent = traffic(group) - before;
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begun;
      if (asked && group.rank() == 0)
        std::printf("%d ranks, rank0_only %d: %.2f s\n", world, static_cast<int>(rank0_only), time.count());
      const auto calls = [&](const char* name) {
        const auto found = sent.operations.find(name);
        return found == sent.operations.end() ? 0 : found->second.calls;
      };
      // One bucket: its request, and the end, are two broadcasts and one.
      EXPECT_EQ(calls("broadcast"), rank0_only ? 3 : 4);
      EXPECT_LE(calls("all_gather"), 4);
      if (rank0_only && group.rank() != 0) {
        EXPECT_TRUE(state.empty());
        continue;
      }
      ASSERT_EQ(state.size(), kMany);
      for (int i = 0; i < kMany; ++i) ASSERT_TRUE(state.at(fmt::format("p{}", i)).to_tensor().equal(whole(i))) << i;
    }
  });
}

/// Rows, ranges, replicas, tensors without elements, in one request and in several; on every rank.
TEST_F(FullTest, ShardsThatDoNotFitAreRefusedOnEveryRank) {
  run_ranks(3, [&](Collective& group) {
    TensorShards shards(group);
    torch::nn::Module net;
    const auto add = [&](const char* name, int64_t start) {
      const auto part = net.register_parameter(name, torch::ones({2, 2}));
      shards.add(part, {.sizes = {6, 2}, .start = start});
    };
    add("good", 2 * group.rank());
    add("holed", group.rank() == 1 ? 3 : 2 * group.rank());
    add("after", 2 * group.rank());
    for (const bool rank0_only : {true, false})
      EXPECT_THAT(testing::error_of([&] { (void)full_state_dict(net, shards, {.rank0_only = rank0_only}); }),
                  HasSubstr("the shards of \"holed\" on the ranks are not one tensor"));
    group.barrier();
  });
}

TEST_F(FullTest, TorchReadsIt) {
  run_ranks(3, [&](Collective& group) {
    Counted here(&group);
    save_checkpoint(folder_ / "full", here.state(), {.shards = here.shards.get(), .full = true});
  });
  Counted whole(nullptr, /*filled=*/false);
  load_raw(folder_ / "full/model.safetensors", whole.net);
  EXPECT_TRUE(whole.is_right());
  const auto python = testing::python_with("torch, safetensors");
  if (!python) GTEST_SKIP() << "no Python with torch and safetensors (LEVIN_PEER_PYTHON names one)";
  const auto script = fs::path(testing::source_dir()) / "tests/checkpoint/read_full.py";
  const auto ran = testing::run_program({*python, script.string(), (folder_ / "full/model.safetensors").string(),
                                         std::to_string(kTensors), std::to_string(kRows), std::to_string(kColumns)});
  EXPECT_EQ(ran.status, 0) << ran.text();
  EXPECT_THAT(ran.text(), HasSubstr("6 tensors: equal"));
}

}  // namespace
}  // namespace levin
