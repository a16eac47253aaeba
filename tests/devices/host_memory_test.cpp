#include "levin/devices/host_memory.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "levin/core/error.h"
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
