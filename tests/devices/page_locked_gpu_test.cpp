#include <gtest/gtest.h>

#include "levin/devices/accelerator.h"
#include "levin/devices/host_memory.h"
#include "levin/testing/gpu.h"

namespace levin {
namespace {

class PageLockedGpu : public testing::GpuTest {};

TEST_F(PageLockedGpu, CopiesDoNotWaitAndTheSizeIsAsAsked) {
  const auto& cuda = detail::cuda_accelerator();
  const c10::Device gpu(c10::kCUDA, 0);
  constexpr int64_t kElements = 33'000'001;
  for (int i = 0; i < 3; ++i) {
    auto there = page_locked(kElements, at::kFloat), back = page_locked(kElements, at::kFloat);
    EXPECT_TRUE(there.is_pinned());
    EXPECT_EQ(there.storage().nbytes(), static_cast<size_t>(kElements) * 4);
    there.copy_(at::arange(kElements, at::kFloat));
    const auto on_device = there.to(gpu, /*non_blocking=*/true);
    back.copy_(on_device, /*non_blocking=*/true);
    cuda.synchronize(gpu);
    EXPECT_TRUE(at::equal(there, back));
  }
}

}  // namespace
}  // namespace levin
