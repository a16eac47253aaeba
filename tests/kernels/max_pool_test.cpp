#include "levin/kernels/max_pool.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/max_pool_detail.h"
#include "levin/testing/plays_cuda.h"

namespace levin::kernels {
namespace {

std::vector<MaxPoolWindow> windows() {
  return {{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
          {.kernel = {2, 2}, .stride = {2, 2}},
          {.kernel = {3, 2}, .stride = {1, 3}, .padding = {1, 0}},
          {.kernel = {2, 3}, .stride = {3, 4}, .padding = {0, 1}}};
}

TEST(MaxPool, OnTheCpuIsTorchsBitByBit) {
  auto all = windows();
  all.push_back({.kernel = {3, 3}, .stride = {2, 2}, .dilation = {2, 2}, .ceil_mode = true});
  for (const auto& w : all) {
    const auto mine = torch::randn({2, 3, 11, 8}).requires_grad_(), theirs = mine.detach().clone().requires_grad_();
    const auto found = max_pool2d(mine, w);
    const auto expected = at::max_pool2d(theirs, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode);
    EXPECT_TRUE(torch::equal(found, expected));
    const auto grad = torch::randn_like(found);
    found.backward(grad);
    expected.backward(grad);
    EXPECT_TRUE(torch::equal(mine.grad(), theirs.grad()));
  }
}

TEST(MaxPool, RefusesWhatTorchRefuses) {
  const auto x = torch::randn({2, 3, 11, 8});
  EXPECT_THROW(max_pool2d(x, {.kernel = {3, 3}, .padding = {2, 2}}), c10::Error);
  EXPECT_THROW(max_pool2d(x, {.kernel = {30, 30}}), c10::Error);
}

TEST(MaxPool, IndicesAreTorchs) {
  for (const auto& w : windows()) {
    const auto x = torch::randn({2, 3, 11, 8});
    const auto expected = std::get<1>(at::max_pool2d_with_indices(x, w.kernel, w.stride, w.padding));
    const auto top = torch::arange(expected.size(2)).view({-1, 1}) * w.stride[0] - w.padding[0];
    const auto left = torch::arange(expected.size(3)) * w.stride[1] - w.padding[1];
    const auto chosen = (expected.div(8, "floor") - top) * w.kernel[1] + expected.remainder(8) - left;
    EXPECT_TRUE(torch::equal(detail::max_pool_indices(chosen.to(at::kByte), 8, w), expected));
  }
}

TEST(MaxPool, OnMetaMakesWhatCudaMakes) {
  const testing::PlaysCuda played;
  const MaxPoolWindow w{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  const auto options = torch::dtype(at::kBFloat16).device(at::kMeta);
  const auto x =
      torch::empty({4, 16, 9, 12}, options).contiguous(at::MemoryFormat::ChannelsLast).detach().requires_grad_();
  const auto y = max_pool2d(x, w);
  EXPECT_NE(y.grad_fn()->name().find("FusedMaxPool"), std::string::npos) << y.grad_fn()->name();
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{4, 16, 5, 6}));
  EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
  const auto [out, chosen] = detail::allocate_max_pool(x, w);
  EXPECT_EQ(chosen.scalar_type(), at::kByte);
  EXPECT_EQ(chosen.sizes(), out.sizes());
  y.backward(torch::empty_like(y));
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(x.grad().strides(), x.strides());
  // Another layout is torch's own.
  const auto plain = torch::empty({4, 16, 9, 12}, options).requires_grad_();
  EXPECT_EQ(max_pool2d(plain, w).grad_fn()->name().find("FusedMaxPool"), std::string::npos);
}

}  // namespace
}  // namespace levin::kernels
