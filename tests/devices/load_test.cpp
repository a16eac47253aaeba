// What devices can do and what is asked of them: operations counted, peaks known, the load of the machine.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/error.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/cpu_load.h"
#include "levin/devices/flop_counter.h"
#include "levin/devices/peak_flops.h"

namespace levin {
namespace {

template <class F>
double flops_of(F&& f) {
  FlopCounter counter;
  f();
  return counter.flops();
}

TEST(FlopCounter, CountsLinearForwardAndBackward) {
  torch::nn::Linear layer(32, 8);
  const auto x = torch::randn({16, 32});
  EXPECT_EQ(flops_of([&] { layer(x); }), 2 * 16 * 32 * 8);
  // The gradient of the weight; the input needs none.
  EXPECT_EQ(flops_of([&] { layer(x).sum().backward(); }), 2 * 2 * 16 * 32 * 8);
  const auto y = torch::randn({4, 16, 32}).requires_grad_();
  EXPECT_EQ(flops_of([&] { layer(y).sum().backward(); }), 3 * 2 * 4 * 16 * 32 * 8);
}

TEST(FlopCounter, CountsConvolutions) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 6, 3).stride(2).padding(1).groups(2));
  const auto x = torch::randn({2, 4, 9, 9}).requires_grad_();
  const double once = 2.0 * 2 * (5 * 5) * 6 * 2 * 9;
  EXPECT_EQ(flops_of([&] { conv(x); }), once);
  EXPECT_EQ(flops_of([&] { conv(x).sum().backward(); }), 3 * once);
  torch::nn::ConvTranspose2d up(torch::nn::ConvTranspose2dOptions(4, 6, 3).stride(2));
  EXPECT_EQ(flops_of([&] { up(x); }), 2.0 * 2 * 81 * 4 * 6 * 9);
}

TEST(FlopCounter, CountsAttentionAndBatchedProducts) {
  const auto q = torch::randn({2, 3, 10, 8}).requires_grad_();
  const double product = 2.0 * 2 * 3 * 10 * 10 * 8;
  EXPECT_EQ(flops_of([&] { at::scaled_dot_product_attention(q, q, q); }), 2 * product);
  EXPECT_EQ(flops_of([&] { torch::matmul(q, q.transpose(2, 3)); }), product);
  EXPECT_EQ(flops_of([&] { torch::mv(q[0][0], q[0][0][0]); }), 2 * 10 * 8);
  EXPECT_EQ(flops_of([&] { q + q; }), 0);
}

TEST(FlopCounter, OneAtATime) {
  FlopCounter counter;
  EXPECT_THROW(FlopCounter(), Error);
}

TEST(PeakFlops, KnowsDevicesByName) {
  EXPECT_EQ(peak_flops("NVIDIA H200", at::kBFloat16), 989.4e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 PCIe", at::kHalf), 756e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3", at::kHalf), 989.4e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-80GB", at::kFloat), 19.5e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-80GB", at::kFloat, /*tf32=*/true), 156e12);
  EXPECT_EQ(peak_flops("NVIDIA A10", at::kFloat), 31.2e12);
  EXPECT_EQ(peak_flops("NVIDIA L4", at::kHalf), 121e12);
  EXPECT_EQ(peak_flops("NVIDIA L40S", at::kHalf), 362e12);
  EXPECT_EQ(peak_flops("Tesla V100-SXM2-16GB", at::kFloat, true), 15.7e12);
  EXPECT_EQ(peak_flops("Tesla T4", at::kHalf), 65e12);
  EXPECT_EQ(peak_flops("NVIDIA GeForce RTX 4090", at::kBFloat16), 165.2e12);
  EXPECT_FALSE(peak_flops("CPU", at::kFloat));
  EXPECT_FALSE(peak_flops("NVIDIA H200", at::kInt));
}

TEST(CpuLoad, IsInPercent) {
  CpuLoad load;
  EXPECT_EQ(load.read().cpu_percent, 0);
  const auto reading = load.read();
  EXPECT_GE(reading.cpu_percent, 0);
  EXPECT_LE(reading.cpu_percent, 100);
  EXPECT_GT(reading.memory_percent, 0);
  EXPECT_LT(reading.memory_percent, 100);
}

TEST(Accelerator, EmptiesItsCache) {
  EXPECT_NO_THROW(accelerator("cpu").empty_cache(at::kCPU));
}

}  // namespace
}  // namespace levin
