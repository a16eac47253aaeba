#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/devices/accelerator.h"
#include "levin/testing/gpu.h"

namespace levin {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);

at::Tensor take(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(kGpu));
}

class MemoryLimit : public testing::GpuTest {};

TEST_F(MemoryLimit, MoreThanTheLimitIsRefusedAndTheRestCanBeHad) {
  const auto& cuda = detail::cuda_accelerator();
  const auto all = cuda.memory_limit(kGpu);
  EXPECT_EQ(all, cuda.info(kGpu).total_memory);
  cuda.empty_cache(kGpu);
  constexpr int64_t kLimit = int64_t{1} << 30;
  cuda.limit_memory(kGpu, kLimit);
  EXPECT_NEAR(static_cast<double>(cuda.memory_limit(kGpu)), static_cast<double>(kLimit), 1e6);
  EXPECT_NO_THROW(take(kLimit / 2));
  cuda.empty_cache(kGpu);
  EXPECT_THROW(take(kLimit * 2), c10::OutOfMemoryError);
  EXPECT_THROW(cuda.limit_memory(kGpu, all + 1), Error);
  EXPECT_THROW(cuda.limit_memory(kGpu, 0), Error);
  cuda.limit_memory(kGpu, all);
  EXPECT_NO_THROW(take(kLimit * 2));
  cuda.empty_cache(kGpu);
}

}  // namespace
}  // namespace levin
