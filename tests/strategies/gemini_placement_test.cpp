#include <functional>
#include <map>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/strategies/gemini/placement.h"
#include "levin/testing/error_of.h"

namespace levin::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Where = ChunkResidence::Where;
using testing::error_of;

class FakeMemory final : public MemorySource {
 public:
  struct Bytes {
    int64_t now = 0;
    int64_t peak = 0;
    int64_t highest = 0;
    void add(int64_t bytes) {
      now += bytes;
      peak = std::max(peak, now);
      highest = std::max(highest, now);
    }
  };
  explicit FakeMemory(Bytes* bytes) : bytes_(bytes) {}
  int64_t allocated() const override { return bytes_->now; }
  int64_t peak() const override { return bytes_->peak; }
  void reset_peak() override { bytes_->peak = bytes_->now; }

 private:
  Bytes* bytes_;
};

/// One use of chunks: what it needs while it works, and what it leaves behind (forward) or takes away (backward).
struct Op {
  std::vector<int> chunks;
  int64_t work = 0;
  int64_t leaves = 0;
  Pass pass = Pass::kForward;
};

/// A device on which steps are played: the clock are the uses.
class FakeDevice {
 public:
  FakeDevice(std::vector<int64_t> sizes, PlacementOptions options, int64_t extra = 0)
      : options_(options), placement_(options, residences(sizes, extra), std::make_unique<FakeMemory>(&memory)) {}

  void step(const std::vector<Op>& ops, bool training = true) {
    gathers = 0;
    for (size_t i = 0; i < ops.size(); ++i) {
      if (i == 0 || ops[i].pass != ops[i - 1].pass) {
        if (i > 0) placement_.end_pass(ops[i - 1].pass);
        placement_.begin_pass(ops[i].pass, training);
      }
      run(ops[i]);
    }
    placement_.end_pass(ops.back().pass);
    if (training)
      for (size_t i = 0; i < placement_.chunks().size(); ++i)
        if (placement_.chunks()[i].where != Where::kAway) leave(static_cast<int>(i));
  }

  Placement& placement() { return placement_; }
  std::vector<int> left;
  FakeMemory::Bytes memory;
  int gathers = 0;

 private:
  static std::vector<ChunkResidence> residences(const std::vector<int64_t>& sizes, int64_t extra) {
    std::vector<ChunkResidence> chunks;
    for (const auto size : sizes) {
      ChunkResidence chunk;
      chunk.name = "chunk " + std::to_string(chunks.size());
      chunk.bytes = size;
      chunk.arriving_bytes = extra ? size + extra : 0;
      chunks.push_back(chunk);
    }
    return chunks;
  }

  ChunkResidence& chunk(int index) { return placement_.chunks()[static_cast<size_t>(index)]; }

  void leave(int index) {
    placement_.layout_changing();
    memory.add(-chunk(index).bytes_now());
    chunk(index).where = Where::kAway;
    placement_.layout_changed();
    left.push_back(index);
  }
  void come(int index) {
    ASSERT_EQ(chunk(index).where, Where::kAway);
    chunk(index).where = Where::kComing;
    memory.add(chunk(index).bytes_now());
    ++gathers;
  }
  void arrive(int index) {
    if (chunk(index).where != Where::kComing) return;
    if (chunk(index).arriving_bytes) {
      memory.add(chunk(index).bytes);  // put together from what arrived
      memory.add(-chunk(index).arriving_bytes);
    }
    chunk(index).where = Where::kHere;
  }

  void run(const Op& op) {
    for (const auto index : placement_.make_room(op.chunks)) leave(index);
    for (const auto index : op.chunks)
      if (chunk(index).where == Where::kAway) come(index);
    for (const auto index : op.chunks) arrive(index);
    placement_.layout_changed();
    const auto plan = placement_.ahead(op.chunks);
    for (const auto index : plan.leave) leave(index);
    for (const auto index : plan.bring) come(index);
    memory.add(op.work);
    memory.add(-op.work);
    memory.add(op.leaves);
    for (const auto index : op.chunks) {
      if (!placement_.keeps(index, op.pass)) leave(index);
      if (op.pass == Pass::kBackward) placement_.reduced(index);
    }
  }

  PlacementOptions options_;
  Placement placement_;
};

PlacementOptions automatic(int64_t capacity, int prefetch = 0) {
  PlacementOptions options;
  options.capacity = capacity;
  options.steady_ratio = 1;
  options.max_prefetch = prefetch;
  return options;
}

/// Blocks one after the other and back: forward leaves `kept` bytes each, backward takes them away again.
std::vector<Op> there_and_back(int blocks, int64_t work, int64_t kept) {
  std::vector<Op> ops;
  for (int i = 0; i < blocks; ++i) ops.push_back({{i}, work, kept, Pass::kForward});
  for (int i = blocks - 1; i >= 0; --i) ops.push_back({{i}, 2 * work, -kept, Pass::kBackward});
  return ops;
}

/// The least number of times that chunks of one size must be brought when `slots` of them have room.
int fewest_gathers(const std::vector<std::vector<int>>& uses, size_t slots) {
  std::map<std::set<int>, int> states{{{}, 0}};
  for (const auto& use : uses) {
    std::map<std::set<int>, int> next;
    for (const auto& [here, cost] : states) {
      std::set<int> all = here;
      int missing = 0;
      for (const auto chunk : use) missing += all.insert(chunk).second;
      const std::vector<int> members(all.begin(), all.end());
      for (uint32_t mask = 0; mask < (1u << members.size()); ++mask) {
        std::set<int> kept;
        for (size_t i = 0; i < members.size(); ++i)
          if (mask >> i & 1) kept.insert(members[i]);
        if (kept.size() > slots || !std::ranges::includes(kept, std::set<int>(use.begin(), use.end()))) continue;
        const auto [place, added] = next.emplace(kept, cost + missing);
        if (!added) place->second = std::min(place->second, cost + missing);
      }
    }
    states = std::move(next);
  }
  int best = 1 << 30;
  for (const auto& [here, cost] : states) best = std::min(best, cost);
  return best;
}

TEST(GeminiTrace, KnowsTheNextUse) {
  UseTrace trace;
  trace.add(std::vector<int>{0, 2});
  trace.add(std::vector<int>{1});
  trace.add(std::vector<int>{0});
  EXPECT_EQ(trace.next_use(0, 0), 2);
  EXPECT_EQ(trace.next_use(0, -1), 0);
  EXPECT_EQ(trace.next_use(2, 0), UseTrace::kNever);
  EXPECT_EQ(trace.next_use(9, 0), UseTrace::kNever);
  EXPECT_TRUE(trace.matches(0, std::vector<int>{0, 2}));
  EXPECT_FALSE(trace.matches(0, std::vector<int>{2, 0}));
  EXPECT_FALSE(trace.matches(3, std::vector<int>{0}));
}

TEST(GeminiMonitor, TellsWhatIsNotParametersUseAfterUse) {
  FakeMemory::Bytes memory;
  memory.add(100);  // batch, buffers
  MemoryMonitor monitor(std::make_unique<FakeMemory>(&memory));
  monitor.begin();
  monitor.begin_period(0);
  memory.add(1500);  // a chunk, and what it takes while it comes
  memory.add(-500);
  monitor.layout_changed(1000);
  memory.add(70);
  memory.add(-50);  // an activation of 20 stays
  monitor.layout_changing();
  memory.add(-1000);
  monitor.layout_changed(0);
  memory.add(300);  // the work after the chunk went is no less work
  memory.add(-300);
  monitor.begin_period(0);
  memory.add(5);
  monitor.finish();
  ASSERT_EQ(monitor.periods().size(), 2);
  EXPECT_EQ(monitor.periods()[0].before, 100);
  EXPECT_EQ(monitor.periods()[0].work, 420);
  EXPECT_EQ(monitor.periods()[1].before, 120);
  EXPECT_EQ(monitor.periods()[1].work, 125);
  EXPECT_EQ(monitor.overall_peak(), 1600);
  EXPECT_EQ(monitor.non_model_now(5), 120);
}

TEST(GeminiMonitor, CountsTensorsOnTheCpu) {
  auto source = make_memory_source(at::kCPU);
  auto a = at::empty({1 << 20}, at::kByte);
  EXPECT_EQ(source->allocated(), 1 << 20);
  source->reset_peak();
  EXPECT_EQ(source->peak(), 1 << 20);
}

TEST(GeminiPlacement, EvictionIsOptimal) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    const int chunks = 3 + static_cast<int>(random() % 4);
    const auto slots = 2 + random() % 2;
    std::vector<Op> ops;
    std::vector<std::vector<int>> uses;
    for (int i = 0; i < 12; ++i) {
      const auto chunk = static_cast<int>(random() % static_cast<unsigned>(chunks));
      ops.push_back({{chunk}, 0, 0, Pass::kForward});
      uses.push_back({chunk});
    }
    ops.back().pass = Pass::kBackward;  // the step ends
    FakeDevice device(std::vector<int64_t>(static_cast<size_t>(chunks), 10),
                      automatic(static_cast<int64_t>(slots) * 10));
    device.step(ops);
    device.step(ops);
    EXPECT_EQ(device.gathers, fewest_gathers(uses, slots)) << "round " << round;
    EXPECT_EQ(device.placement().counts().mismatches, 0);
    EXPECT_LE(device.memory.highest, static_cast<int64_t>(slots) * 10);
  }
}

TEST(GeminiPlacement, PeakNeverExceedsTheBudget) {
  std::mt19937 random(5);
  int tight = 0;
  for (int round = 0; round < 200; ++round) {
    const int blocks = 3 + static_cast<int>(random() % 6);
    std::vector<int64_t> sizes;
    for (int i = 0; i < blocks; ++i) sizes.push_back(50 + static_cast<int64_t>(random() % 100));
    auto ops = there_and_back(blocks, 20 + static_cast<int64_t>(random() % 60), static_cast<int64_t>(random() % 40));
    for (auto& op : ops)  // units that need a chunk of a neighbour, too
      if (random() % 3 == 0) op.chunks.push_back((op.chunks[0] + 1) % blocks);
    const auto extra = static_cast<int64_t>(random() % 30);
    const auto capacity = 420 + static_cast<int64_t>(random() % 800);
    FakeDevice device(sizes, automatic(capacity, static_cast<int>(random() % 4)), extra);
    bool fits = true;
    try {
      for (int step = 0; step < 4; ++step) device.step(ops);
    } catch (const Error& error) {
      fits = false;
      EXPECT_THAT(error.what(), HasSubstr("does not fit"));
    }
    tight += device.placement().counts().evicted > 0;
    if (fits) {
      EXPECT_LE(device.memory.highest, capacity) << "round " << round;
    }
  }
  EXPECT_GT(tight, 50);
}

TEST(GeminiPlacement, WithRoomForAllNothingLeavesBeforeItsBackward) {
  FakeDevice device({10, 10, 10}, automatic(1000));
  const auto ops = there_and_back(3, 5, 5);
  for (int step = 0; step < 3; ++step) {
    device.step(ops);
    EXPECT_EQ(device.gathers, 3);
  }
  EXPECT_EQ(device.placement().counts().evicted, 0);
}

TEST(GeminiPlacement, WhoIsNeededLastLeavesFirst) {
  // Chunks of a there-and-back: in forward the first ones have the longest time.
  FakeDevice device({10, 10, 10, 10}, automatic(30));
  const auto ops = there_and_back(4, 0, 0);
  device.step(ops);
  device.left.clear();
  device.step(ops);
  EXPECT_THAT(device.left, ElementsAre(0, 3, 2, 1, 0));
  EXPECT_EQ(device.gathers, 5);
}

TEST(GeminiPlacement, NeverUsedAgainLeavesFirst) {
  FakeDevice device({10, 10, 10, 10}, automatic(30));
  // Chunk 1 is not used again in the step; 0 is.
  const std::vector<Op> ops{{{0}}, {{1}}, {{2}}, {{3}}, {{0}, 0, 0, Pass::kBackward}};
  device.step(ops);
  device.left.clear();
  device.step(ops);
  EXPECT_EQ(device.left.front(), 1);
  EXPECT_EQ(device.gathers, 4);
}

TEST(GeminiPlacement, PrefetchBringsWhatComesNextWithoutMoreGathers) {
  for (const int prefetch : {0, 1, 4}) {
    FakeDevice device({10, 10, 10, 10, 10}, automatic(40, prefetch));
    const auto ops = there_and_back(5, 0, 0);
    device.step(ops);
    device.step(ops);
    EXPECT_EQ(device.gathers, 6) << prefetch;
    EXPECT_LE(device.memory.highest, 40);
    EXPECT_EQ(device.placement().counts().prefetched > 0, prefetch > 0);
  }
}

TEST(GeminiPlacement, AnotherOrderDropsTheRecordAndIsRecordedAgain) {
  FakeDevice device({10, 10, 10, 10}, automatic(30, 1));
  const auto ops = there_and_back(4, 0, 0);
  device.step(ops);
  auto others = ops;
  std::swap(others[1], others[2]);
  device.step(others);
  EXPECT_EQ(device.placement().counts().mismatches, 1);
  EXPECT_EQ(device.placement().counts().recorded, 1);
  device.step(others);
  EXPECT_EQ(device.placement().counts().recorded, 1);
  device.step(others);
  EXPECT_EQ(device.placement().counts().recorded, 2);
  EXPECT_EQ(device.placement().counts().mismatches, 1);
  EXPECT_LE(device.memory.highest, 30);
  device.step({others.begin(), others.begin() + 5});  // ends too early
  EXPECT_EQ(device.placement().counts().mismatches, 2);
}

TEST(GeminiPlacement, EvaluationHasARecordOfItsOwnAndKeepsWhatItCan) {
  FakeDevice device({10, 10, 10, 10}, automatic(100));
  const auto ops = there_and_back(4, 0, 0);
  const std::vector<Op> forward(ops.begin(), ops.begin() + 4);
  device.step(ops);
  device.step(forward, false);
  EXPECT_EQ(device.gathers, 4);
  device.step(forward, false);
  EXPECT_EQ(device.gathers, 2);  // the recorded one had room for two
  device.step(forward, false);
  EXPECT_EQ(device.gathers, 0);
  device.step(ops);
  EXPECT_EQ(device.placement().counts().mismatches, 0);
  EXPECT_EQ(device.placement().counts().recorded, 2);
}

TEST(GeminiPlacement, WhatGrewAfterTheRecordedStepIsCountedIn) {
  FakeDevice device({10, 10, 10, 10}, automatic(60));
  const auto ops = there_and_back(4, 10, 0);  // backward works with 20
  device.step(ops);
  device.step(ops);
  EXPECT_EQ(device.gathers, 4);
  device.memory.add(10);  // states of the optimizer
  for (int step = 0; step < 4; ++step) device.step(ops);
  EXPECT_GT(device.gathers, 4);
  EXPECT_LE(device.memory.highest, 60);
}

TEST(GeminiPlacement, RanksAgreeOnTheGreatestNeed) {
  auto options = automatic(60);
  int calls = 0;
  options.max_over_ranks = [&](std::vector<int64_t>& values) {
    ++calls;
    if (values.size() == 1 + 2 * 8)
      for (auto& value : values) value += 20;  // another rank needs more
  };
  FakeDevice device({10, 10, 10, 10}, options);
  const auto ops = there_and_back(4, 10, 0);
  device.step(ops);
  EXPECT_EQ(calls, 0);
  device.step(ops);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(device.gathers, 6);  // 60 - 40 for the others leaves room for two
  for (int step = 0; step < 15; ++step) device.step(ops);
  EXPECT_EQ(calls, 2 + 5);  // steps 1, 2, 4, 8, 16

  auto disagreeing = automatic(60);
  disagreeing.max_over_ranks = [](std::vector<int64_t>& values) { values[0] += 1; };
  FakeDevice other({10, 10, 10, 10}, disagreeing);
  other.step(ops);
  EXPECT_THROW(other.step(ops), Error);
}

TEST(GeminiPlacement, WhatCannotFitIsRefusedWithNumbers) {
  FakeDevice device({400, 100}, automatic(450));
  const auto ops = there_and_back(2, 40, 0);
  device.step(ops);
  EXPECT_EQ(error_of([&] { device.step(ops); }),
            "[colossalai] what is needed together does not fit on the device: 400 B of parameters (chunk \"chunk "
            "0\") and 80 B of everything else are 30 B more than 100 % of 450 B; take smaller units or a smaller "
            "chunk_size, a smaller batch, activation_checkpointing_policy, or raise memory_budget");
}

TEST(GeminiPlacement, OtherPoliciesDoAsTheyAreCalled) {
  const auto ops = there_and_back(3, 0, 0);
  PlacementOptions options;
  options.max_prefetch = 0;
  options.policy = PlacementPolicy::kCpu;
  FakeDevice cpu({10, 10, 10}, options);
  cpu.step(ops);
  EXPECT_EQ(cpu.gathers, 6);
  EXPECT_EQ(cpu.memory.highest, 10);
  options.policy = PlacementPolicy::kCuda;
  FakeDevice cuda({10, 10, 10}, options);
  cuda.step(ops);
  EXPECT_EQ(cuda.gathers, 3);
  options.policy = PlacementPolicy::kStatic;
  FakeDevice fixed({10, 10, 10}, options);
  fixed.placement().chunks()[2].keep = true;
  fixed.step(ops);
  EXPECT_EQ(fixed.gathers, 5);
  EXPECT_EQ(placement_policy("static"), PlacementPolicy::kStatic);
  EXPECT_THROW(placement_policy("gpu"), Error);
}

TEST(GeminiPlacement, AChunkIsNotEvictedWhileItIsComputedWith) {
  std::vector<ChunkResidence> chunks(3);
  for (auto& chunk : chunks) chunk.bytes = 10;
  FakeMemory::Bytes memory;
  Placement placement({.capacity = 125, .warmup_model_ratio = 0.2}, chunks, std::make_unique<FakeMemory>(&memory));
  placement.begin_pass(Pass::kForward, true);
  const auto use = [&](int chunk) {
    const auto leave = placement.make_room(std::vector{chunk});
    placement.chunks()[static_cast<size_t>(chunk)].where = Where::kHere;
    return leave;
  };
  EXPECT_THAT(use(0), IsEmpty());
  EXPECT_THAT(use(1), IsEmpty());
  EXPECT_THAT(use(2), IsEmpty());  // 30 bytes are more than 25, but all three are in use
  const auto after = [&](const std::function<void()>& what) {
    what();
    return placement.make_room(std::vector{2});
  };
  EXPECT_THAT(after([&] { EXPECT_TRUE(placement.keeps(0, Pass::kForward)); }), ElementsAre(0));
  placement.chunks()[0].where = Where::kAway;
  placement.make_room(std::vector{0});
  placement.chunks()[0].where = Where::kHere;
  EXPECT_THAT(after([&] { placement.reduced(1); }), ElementsAre(1));
  EXPECT_THAT(after([&] { placement.abandon(), placement.begin_pass(Pass::kForward, true); }), ElementsAre(1));
}

}  // namespace
}  // namespace levin::detail
