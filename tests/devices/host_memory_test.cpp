#include "levin/devices/host_memory.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "levin/core/error.h"

namespace levin {
namespace {

struct HostMemory : ::testing::Test {
  ~HostMemory() override { ::unsetenv("LEVIN_HOST_MEMORY_GB"); }
};

TEST_F(HostMemory, IsWhatTheSystemSaysOrWhatItIsToldToBe) {
  ::unsetenv("LEVIN_HOST_MEMORY_GB");
  EXPECT_GT(available_host_memory().value_or(0), 0);
  ::setenv("LEVIN_HOST_MEMORY_GB", "1.5", 1);
  EXPECT_EQ(available_host_memory(), 1'500'000'000);
  for (const char* wrong : {"much", "12 GB", "-3", "0", "nan"}) {
    ::setenv("LEVIN_HOST_MEMORY_GB", wrong, 1);
    EXPECT_THROW(available_host_memory(), Error) << wrong;
  }
}

TEST_F(HostMemory, ThatIsPageLockedIsAsLargeAsAsked) {
  for (const int64_t elements : {0, 1, 1000, 3'000'001}) {
    auto memory = page_locked(elements, at::kBFloat16);
    EXPECT_EQ(memory.numel(), elements);
    EXPECT_EQ(memory.scalar_type(), at::kBFloat16);
    EXPECT_EQ(memory.storage().nbytes(), static_cast<size_t>(elements) * 2);
    memory.fill_(2);
    EXPECT_EQ(memory.sum(at::kDouble).item<double>(), 2.0 * static_cast<double>(elements));
  }
}

}  // namespace
}  // namespace levin
