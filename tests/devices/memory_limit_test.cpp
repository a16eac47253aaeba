#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/devices/accelerator.h"

namespace levin {
namespace {

TEST(MemoryLimit, TheCpuHasNone) {
  const auto& cpu = detail::cpu_accelerator();
  const auto all = cpu.memory_limit(c10::kCPU);
  EXPECT_GT(all, 1 << 20);
  cpu.limit_memory(c10::kCPU, 1 << 20);
  EXPECT_EQ(cpu.memory_limit(c10::kCPU), all);
}

TEST(MemoryLimit, ADeviceThatIsNotThereSaysSo) {
  const auto& cuda = detail::cuda_accelerator();
  if (cuda.device_count() > 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_ANY_THROW(cuda.limit_memory(c10::Device(c10::kCUDA, 0), 1 << 20));
  EXPECT_ANY_THROW(cuda.memory_limit(c10::Device(c10::kCUDA, 0)));
}

}  // namespace
}  // namespace levin
