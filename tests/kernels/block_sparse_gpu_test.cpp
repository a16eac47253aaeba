// Attention over blocks on the GPU: its kernel and the plain operators, against attention to all in float32.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/devices/accelerator.h"
#include "levin/kernels/block_sparse/attention.h"
#include "levin/testing/block_sparse.h"
#include "levin/testing/gpu.h"
#include "levin/testing/scoped_variable.h"

namespace levin::block_sparse_gpu_tests {
namespace {

using at::Tensor;
using kernels::block_sparse_attention;

class BlockSparseGpu : public levin::testing::GpuTest {};

double relative(const Tensor& found, const Tensor& expected) {
  const auto a = found.to(at::kCPU, at::kDouble), b = expected.to(at::kCPU, at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(1e-30)).item<double>();
}

struct Sizes {
  at::ScalarType dtype;
  int64_t block, width;
  double tolerance;
};

class BlockSparseGpuBy : public BlockSparseGpu, public ::testing::WithParamInterface<const char*> {
 protected:
  levin::testing::ScopedVariable by_{"LEVIN_BLOCK_SPARSE", GetParam()};
};

TEST_P(BlockSparseGpuBy, EqualsAttentionWithAMask) {
  torch::manual_seed(3);
  for (const auto& [dtype, block, width, tolerance] :
       {Sizes{at::kBFloat16, 64, 64, 1.2e-2}, Sizes{at::kHalf, 64, 64, 2e-3}, Sizes{at::kFloat, 64, 64, 2e-3},
        Sizes{at::kBFloat16, 16, 32, 2e-2}})
    for (const bool padded : {false, true}) {
      const int64_t heads = 3, blocks = 13, tokens = blocks * block;
      const auto plan = testing::random_plan(heads, blocks, block, 3, at::kCUDA);
      const auto qkv = torch::randn({2, tokens, 3, heads, width}, at::kCUDA).to(dtype).requires_grad_();
      Tensor mask;
      if (padded) {
        mask = at::ones({2, tokens}, qkv.options().dtype(at::kLong).requires_grad(false));
        mask[0].slice(0, tokens - block - 5).zero_();
        mask[1].slice(0, 0, 5).zero_();
      }
      const auto wide = qkv.detach().to(at::kFloat).requires_grad_();
      const auto expected = testing::seen_densely(wide, mask, plan);
      const auto found = block_sparse_attention(qkv, mask, plan);
      EXPECT_EQ(found.scalar_type(), dtype);
      EXPECT_LT(relative(found, expected), tolerance) << dtype << block << padded;
      const auto grad = torch::randn_like(expected).to(dtype);
      const auto of = torch::autograd::grad({found}, {qkv}, {grad}, /*retain_graph=*/true)[0];
      const auto exact = torch::autograd::grad({expected}, {wide}, {grad.to(at::kFloat)})[0];
      for (int64_t part = 0; part < 3; ++part)
        EXPECT_LT(relative(of.select(2, part), exact.select(2, part)), 2 * tolerance) << dtype << block << part;
      // The same numbers every time.
      EXPECT_TRUE(torch::autograd::grad({found}, {qkv}, {grad})[0].equal(of));
    }
}

INSTANTIATE_TEST_SUITE_P(Ways, BlockSparseGpuBy, ::testing::Values("torch", "kernel"),
                         [](const auto& way) { return std::string(way.param); });

TEST_F(BlockSparseGpu, KernelKeepsLittleForBackward) {
  const levin::testing::ScopedVariable kernel("LEVIN_BLOCK_SPARSE", "kernel");
  const auto plan = testing::random_plan(12, 64, 64, 3, at::kCUDA);
  const auto qkv = torch::randn({1, 4096, 3, 12, 64}, at::kCUDA).to(at::kBFloat16).requires_grad_();
  const auto allocated = [&] { return levin::detail::cuda_accelerator().memory(qkv.device()).allocated; };
  const auto before = allocated();
  const auto out = block_sparse_attention(qkv, {}, plan);
  EXPECT_EQ(allocated() - before, int64_t{4096} * 768 * 2 + int64_t{4096} * 12 * 4);
}

}  // namespace
}  // namespace levin::block_sparse_gpu_tests
