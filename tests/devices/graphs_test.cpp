#include "levin/devices/graphs.h"

#include <cstring>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/optim/zero_grad.h"
#include "levin/testing/error_of.h"

namespace levin::detail {
namespace {

/// A device whose memory is the host's.
struct HostGraphs final : GraphDevice {
  c10::Device device() const override { return at::kCPU; }
  std::shared_ptr<DeviceGraph> capture(const std::function<void()>&) override { return nullptr; }
  void upload(const Tensor& to, const void* host, size_t bytes) override {
    std::memcpy(to.mutable_data_ptr(), host, bytes);
  }
  Tensor alias(const Tensor& tensor, std::shared_ptr<DeviceGraph>) override { return tensor; }
  void empty_cache() override {}
};

TEST(RefreshedValues, AreUploadedWhenTheyChange) {
  HostGraphs device;
  RefreshedValues values(at::kCPU);
  double rate = 1;
  int64_t count = 7;
  const auto* first =
      static_cast<const double*>(values.add(sizeof(double), [&](void* to) { std::memcpy(to, &rate, 8); }));
  const auto* second =
      static_cast<const int64_t*>(values.add(sizeof(int64_t), [&](void* to) { std::memcpy(to, &count, 8); }));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second) % 16, 0u);
  values.refresh(device);
  EXPECT_EQ(*first, 1);
  EXPECT_EQ(*second, 7);
  EXPECT_EQ(values.uploads(), 1);
  values.refresh(device);
  EXPECT_EQ(values.uploads(), 1);
  rate = 0.5;
  EXPECT_EQ(*first, 1);
  values.refresh(device);
  EXPECT_EQ(*first, 0.5);
  EXPECT_EQ(*second, 7);
  EXPECT_EQ(values.uploads(), 2);
}

TEST(RefreshedValues, FillSeveralChunks) {
  HostGraphs device;
  RefreshedValues values(at::kCPU);
  std::vector<const int*> places;
  for (int i = 0; i < 600; ++i)
    places.push_back(static_cast<const int*>(values.add(sizeof(int), [i](void* to) { std::memcpy(to, &i, 4); })));
  values.refresh(device);
  for (int i = 0; i < 600; ++i) EXPECT_EQ(*places[i], i);
  EXPECT_EQ(values.uploads(), 3);
  EXPECT_NE(testing::error_of([&] { values.add(5000, [](void*) {}); }).find("5000 bytes"), std::string::npos);
}

TEST(DeferredChecks, FailAtALaterLook) {
  DeferredChecks checks(at::kCPU);
  auto failed = torch::zeros({1}, at::kBool);
  checks.add(failed, "[test] it failed");
  checks.start();
  checks.look();
  checks.look();
  DeferredChecks bad(at::kCPU);
  bad.add(torch::ones({}, at::kBool), "[test] it failed");
  bad.look();  // sends for the flag
  EXPECT_EQ(testing::error_of([&] { bad.look(); }), "[test] it failed");
}

TEST(StepScope, RefusesInACaptureOnly) {
  refuse_capture("outside");
  EXPECT_EQ(refreshed(8, [](void*) {}), nullptr);
  EXPECT_FALSE(is_capturing());
  RefreshedValues values(at::kCPU);
  const StepScope eager{}, capturing{.values = &values};
  {
    const EnterStep outer(eager);
    refuse_capture("eager");
    {
      const EnterStep inner(capturing);
      EXPECT_TRUE(is_capturing());
      EXPECT_NE(refreshed(8, [](void*) {}), nullptr);
      EXPECT_THROW(refuse_capture("a reason"), CaptureRefused);
      bool elsewhere = true, in_backward = false;
      std::thread([&] { elsewhere = is_capturing(); }).join();
      EXPECT_FALSE(elsewhere) << "a loader's thread";
      auto x = torch::ones({1}).requires_grad_();
      auto y = x * 2;
      y.register_hook([&](const Tensor&) { in_backward = is_capturing(); });
      y.backward();
      EXPECT_TRUE(in_backward);
    }
    EXPECT_FALSE(is_capturing());
    EXPECT_EQ(current_step(), &eager);
  }
  EXPECT_EQ(current_step(), nullptr);
}

TEST(StepScope, ZeroGradKeepsMemoryWhereGradientsStay) {
  auto param = torch::ones({3}).requires_grad_();
  param.mutable_grad() = torch::ones({3});
  const auto grad = param.grad();
  {
    const StepScope scope{.keeps_gradients = true};
    const EnterStep enter(scope);
    optim::zero_grad({param}, /*set_to_none=*/true);
  }
  EXPECT_TRUE(param.grad().is_same(grad));
  EXPECT_EQ(grad.abs().max().item<float>(), 0);
  optim::zero_grad({param}, /*set_to_none=*/true);
  EXPECT_FALSE(param.grad().defined());
}

}  // namespace
}  // namespace levin::detail
