#include "levin/devices/host_memory.h"

#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/devices/accelerator.h"
#include "levin/testing/scoped_variable.h"

namespace levin {
namespace {

using testing::ScopedVariable;

TEST(HostMemory, IsWhatTheSystemSaysOrWhatItIsToldToBe) {
  const char* name = "LEVIN_HOST_MEMORY_GB";
  const ScopedVariable none(name, std::nullopt);
  EXPECT_GT(available_host_memory().value_or(0), 0);
  const ScopedVariable told(name, "1.5");
  EXPECT_EQ(available_host_memory(), 1'500'000'000);
  for (const char* wrong : {"much", "12 GB", "-3", "0", "nan"}) {
    const ScopedVariable mistaken(name, wrong);
    EXPECT_THROW(available_host_memory(), Error) << wrong;
  }
}

TEST(HostMemory, ThatIsPageLockedIsAsLargeAsAsked) {
  for (const int64_t elements : {0, 1, 1000, 3'000'001}) {
    auto memory = page_locked(elements, at::kBFloat16);
    EXPECT_EQ(memory.numel(), elements);
    EXPECT_EQ(memory.scalar_type(), at::kBFloat16);
    EXPECT_EQ(memory.storage().nbytes(), static_cast<size_t>(elements) * 2);
    memory.fill_(2);
    EXPECT_EQ(memory.sum(at::kDouble).item<double>(), 2.0 * static_cast<double>(elements));
  }
}

bool allocates_by_glibc() {
#if defined(__GLIBC__) && defined(__has_feature)
  return !__has_feature(address_sanitizer);
#elif defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
  return true;
#else
  return false;
#endif
}

void take_and_free_16_megabytes() {
  std::vector<at::Tensor> pieces;
  for (int i = 0; i < 16; ++i) pieces.push_back(at::ones({1 << 18}));
}

TEST(HostMemory, ThatWasFreedIsKeptUntilItIsGivenBack) {
  if (!allocates_by_glibc()) GTEST_SKIP() << "the allocator is not glibc's";
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"})
    if (std::getenv(name)) GTEST_SKIP() << name << " is set";
  const auto& cpu = accelerator_of(at::kCPU);
  const auto resident = [&] { return cpu.memory(at::kCPU).allocated; };
  cpu.set_device(at::kCPU);
  cpu.empty_cache(at::kCPU);
  const auto before = resident();
  take_and_free_16_megabytes();
  EXPECT_GT(resident(), before + (12 << 20));
  cpu.empty_cache(at::kCPU);
  EXPECT_LT(resident(), before + (4 << 20));
}

TEST(HostMemory, OnLargePagesIsTheSameTensor) {
  for (const int64_t elements : {0, 100, 3'000'000}) {
    const auto fresh = at::empty({elements});
    const auto same = on_large_pages(fresh);
    EXPECT_TRUE(same.is_same(fresh));
    EXPECT_EQ(same.fill_(1).sum().item<double>(), static_cast<double>(elements));
  }
  EXPECT_EQ(on_large_pages(at::empty({3'000'000}).narrow(0, 7, 2'000'000)).fill_(1).sum().item<double>(), 2e6);
}

}  // namespace
}  // namespace levin
