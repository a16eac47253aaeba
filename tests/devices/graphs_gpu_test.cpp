#include <optional>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/devices/accelerator.h"
#include "levin/devices/graphs.h"
#include "levin/testing/gpu.h"

namespace levin::detail {
namespace {

class GraphsGpu : public levin::testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    graphs = cuda_graphs(c10::Device(at::kCUDA, 0));
    values.emplace(c10::Device(at::kCUDA, 0));
    scope.values = &*values;
  }
  std::shared_ptr<DeviceGraph> capture(const std::function<void()>& body) {
    return graphs->capture([&] {
      const EnterStep enter(scope);
      body();
    });
  }

  std::shared_ptr<GraphDevice> graphs;
  std::optional<RefreshedValues> values;
  StepScope scope;
};

TEST_F(GraphsGpu, ReplaysOnNewInputs) {
  auto x = torch::ones({1000}, at::kCUDA);
  Tensor y;
  const auto graph = capture([&] { y = x * 2 + 1; });
  for (const float value : {1.0f, 5.0f}) {
    x.fill_(value);
    graph->replay();
    EXPECT_EQ(y.min().item<float>(), 2 * value + 1);
  }
}

TEST_F(GraphsGpu, RandomNumbersContinueAsInEagerMode) {
  auto x = torch::ones({4096}, at::kCUDA);
  std::vector<Tensor> eager, captured;
  const auto step = [&] { return torch::dropout(x, 0.3, true) + torch::rand_like(x); };
  torch::manual_seed(3);
  for (int i = 0; i < 5; ++i) eager.push_back(step());
  torch::manual_seed(3);
  captured.push_back(step());
  Tensor out;
  const auto graph = capture([&] { out = step(); });
  for (int i = 0; i < 3; ++i) {
    graph->replay();
    captured.push_back(out.clone());
  }
  captured.push_back(step());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(torch::equal(eager[i], captured[i])) << i;
}

TEST_F(GraphsGpu, AStateTakenInACaptureBringsTheSameNumbersBack) {
  const c10::Device device(at::kCUDA, 0);
  const auto& accelerator = accelerator_of(device);
  Tensor first, again, next;
  const auto graph = capture([&] {
    const auto state = accelerator.rng_state(device);
    first = torch::rand({100}, at::kCUDA);
    const auto here = accelerator.rng_state(device);
    accelerator.set_rng_state(device, state);
    again = torch::rand({100}, at::kCUDA);
    accelerator.set_rng_state(device, here);
    next = torch::rand({100}, at::kCUDA);
  });
  graph->replay();
  const auto before = first.clone();
  EXPECT_TRUE(torch::equal(first, again));
  EXPECT_FALSE(torch::equal(first, next));
  graph->replay();
  EXPECT_TRUE(torch::equal(first, again));
  EXPECT_FALSE(torch::equal(first, before));
}

TEST_F(GraphsGpu, EverythingWorksAfterACaptureThatFailed) {
  auto x = torch::ones({1000}, at::kCUDA);
  torch::manual_seed(5);
  const auto expected = torch::rand({10}, at::kCUDA);
  torch::manual_seed(5);
  // The host waits for the device: the capture becomes invalid.
  EXPECT_ANY_THROW(capture([&] { (void)(x.sum() + torch::rand({1}, at::kCUDA)).item<float>(); }));
  // An exception of the step itself: it does not.
  EXPECT_THROW(capture([&] {
                 const auto y = x + torch::rand_like(x);
                 refuse_capture("no");
               }),
               CaptureRefused);
  EXPECT_TRUE(torch::equal(torch::rand({10}, at::kCUDA), expected));
  EXPECT_EQ((x * 3).sum().item<float>(), 3000);
  Tensor y;
  const auto graph = capture([&] { y = x + 1; });
  graph->replay();
  EXPECT_EQ(y.sum().item<float>(), 2000);
}

TEST_F(GraphsGpu, GraphsShareTheirMemory) {
  const auto& accelerator = accelerator_of(at::Device(at::kCUDA, 0));
  const c10::Device device(at::kCUDA, 0);
  auto x = torch::ones({64 << 20}, at::kCUDA);  // 256 MiB
  const auto body = [&] { x.copy_((x * 2).add_(1).div_(3)); };
  const auto first = capture(body);
  const auto reserved = accelerator.memory(device).reserved;
  const auto second = capture(body);
  EXPECT_EQ(accelerator.memory(device).reserved, reserved);
  second->replay();
  first->replay();
  EXPECT_FLOAT_EQ(x.mean().item<float>(), 1);
}

TEST_F(GraphsGpu, RefreshedValuesReachTheDevice) {
  float value = 2;
  const auto* place =
      static_cast<const float*>(values->add(sizeof(float), [&](void* to) { *static_cast<float*>(to) = value; }));
  const auto view = torch::from_blob(const_cast<float*>(place), {1}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  Tensor y;
  const auto graph = capture([&] { y = view * 10; });
  for (const float now : {2.0f, 3.0f, 3.0f}) {
    value = now;
    values->refresh(*graphs);
    value = -1;  // the host may change it at once
    graph->replay();
    EXPECT_EQ(y.item<float>(), 10 * now);
  }
  EXPECT_EQ(values->uploads(), 2);
}

TEST_F(GraphsGpu, RefreshedValuesAreNotInMemoryThatTheGraphUsesBefore) {
  const auto x = torch::full({1024}, 7.0f, at::kCUDA);
  Tensor y;
  const auto graph = capture([&] {
    auto sum = torch::zeros({}, at::kCUDA);
    for (int i = 0; i < 64; ++i) sum = sum + (x * 3).sum();  // memory that is free again when the value is asked for
    const auto* place =
        static_cast<const float*>(refreshed(sizeof(float), [](void* to) { *static_cast<float*>(to) = 5; }));
    y = torch::from_blob(const_cast<float*>(place), {1}, at::TensorOptions(at::kCUDA).dtype(at::kFloat)) + 0 * sum;
  });
  for (int i = 0; i < 3; ++i) {
    values->refresh(*graphs);
    graph->replay();
    EXPECT_EQ(y.item<float>(), 5);
  }
}

}  // namespace
}  // namespace levin::detail
