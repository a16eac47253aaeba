#include "levin/devices/memory_counter.h"

#include <optional>
#include <thread>

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace levin {
namespace {

constexpr int64_t kMiB = 1 << 20;

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::kByte);
}

TEST(MemoryCounter, CountsBytesPeakAndResets) {
  MemoryCounter counter;
  EXPECT_EQ(counter.allocated(), 0);
  auto a = bytes(3 * kMiB);
  { auto b = bytes(2 * kMiB); }
  EXPECT_EQ(counter.allocated(), 3 * kMiB);
  EXPECT_EQ(counter.peak(), 5 * kMiB);
  EXPECT_EQ(counter.total(), 5 * kMiB);
  EXPECT_EQ(counter.allocations(), 2);
  counter.reset_peak();
  EXPECT_EQ(counter.peak(), 3 * kMiB);
  a.resize_({8 * kMiB});  // the old memory lives until it was copied
  EXPECT_EQ(counter.allocated(), 8 * kMiB);
  EXPECT_EQ(counter.peak(), 11 * kMiB);
  a.reset();
  EXPECT_EQ(counter.allocated(), 0);
}

TEST(MemoryCounter, StorageThatIsFreedAndFilledAgainIsCounted) {
  MemoryCounter counter;
  auto a = at::zeros({kMiB}, at::kFloat);
  auto view = a.view({1024, 1024});
  a.storage().unsafeGetStorageImpl()->set_data_ptr(c10::GetCPUAllocator()->allocate(0));
  EXPECT_EQ(counter.allocated(), 0);
  auto* storage = a.storage().unsafeGetStorageImpl();
  storage->set_data_ptr(storage->allocator()->allocate(4 * kMiB));
  EXPECT_EQ(counter.allocated(), 4 * kMiB);
}

TEST(MemoryCounter, TensorsMayComeFromBeforeAndLiveOn) {
  auto before = bytes(kMiB);
  auto* allocator = c10::GetCPUAllocator();
  std::optional<at::Tensor> after;
  {
    MemoryCounter counter;
    EXPECT_NE(c10::GetCPUAllocator(), allocator);
    before.reset();
    EXPECT_EQ(counter.allocated(), 0);
    after = bytes(kMiB);
  }
  EXPECT_EQ(c10::GetCPUAllocator(), allocator);
  MemoryCounter later;
  after->resize_({4 * kMiB});  // through the allocator the storage came from
  EXPECT_EQ(later.allocated(), 4 * kMiB);
  after.reset();
  EXPECT_EQ(later.allocated(), 0);
}

TEST(MemoryCounter, NestedOnesCountFromTheirOwnBeginning) {
  MemoryCounter outer;
  auto a = bytes(kMiB);
  std::optional<MemoryCounter> inner(std::in_place);
  auto b = bytes(2 * kMiB);
  a.reset();
  EXPECT_EQ(inner->allocated(), 2 * kMiB);
  EXPECT_EQ(inner->peak(), 2 * kMiB);
  EXPECT_EQ(outer.allocated(), 2 * kMiB);
  EXPECT_EQ(outer.peak(), 3 * kMiB);
  inner.reset();
  auto c = bytes(kMiB);
  EXPECT_EQ(outer.allocated(), 3 * kMiB);
}

TEST(MemoryCounter, OtherThreadsAndBackwardAreCounted) {
  MemoryCounter counter;
  std::thread([&] { auto a = bytes(7 * kMiB); }).join();
  EXPECT_EQ(counter.peak(), 7 * kMiB);
  EXPECT_EQ(counter.allocated(), 0);
  auto w = torch::ones({kMiB}, torch::requires_grad());
  auto loss = w.mul(2).sum();
  counter.reset_peak();
  loss.backward();
  EXPECT_GE(counter.peak(), 8 * kMiB);  // w and its gradient
  EXPECT_LE(counter.allocated(), 8 * kMiB + 1024);
}

TEST(MemoryCounter, ManyThreadsAtOnce) {
  MemoryCounter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([] {
      for (int k = 0; k < 500; ++k) bytes(64 + k);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(counter.allocated(), 0);
  EXPECT_EQ(counter.allocations(), 2000);
  EXPECT_LE(counter.peak(), 4 * 564);
}

}  // namespace
}  // namespace levin
