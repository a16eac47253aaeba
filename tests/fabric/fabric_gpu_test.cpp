#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/testing/gpu.h"

namespace levin {
namespace {

using FabricGpu = testing::GpuTest;

models::VisionTransformer small_vit() {
  return models::vit({.image_size = 32,
                      .patch_size = 8,
                      .num_layers = 2,
                      .num_heads = 4,
                      .hidden_dim = 64,
                      .mlp_dim = 128,
                      .num_classes = 10});
}

TEST_F(FabricGpu, TrainsInEveryPrecision) {
  for (const char* precision : {"32-true", "64-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed"}) {
    Fabric fabric({.accelerator = "cuda", .devices = 1, .precision = precision});
    fabric.launch();
    torch::manual_seed(0);
    auto model = fabric.init_module(small_vit);
    EXPECT_TRUE(model->parameters()[0].is_cuda()) << precision;
    auto [net, optimizer] =
        fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-3, .eps = 1e-4}));  // 1e-8 is 0 in float16
    const auto x = fabric.to_device(torch::randn({16, 3, 32, 32}));
    const auto y = fabric.to_device(torch::randint(0, 10, {16}));
    float first = 0, last = 0;
    for (int step = 0; step < 40; ++step) {
      const auto loss = cross_entropy(net(x), y);
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      fabric.backward(loss);
      fabric.clip_gradients(optimizer, {.max_norm = 10.0, .error_if_nonfinite = false});
      optimizer.step();
      optimizer.zero_grad();
      last = loss.item<float>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.5 * first) << precision;
  }
}

TEST_F(FabricGpu, ScalerBacksOffWithoutWaitingAndItsStateMovesToTheDevice) {
  Fabric fabric({.accelerator = "cuda", .devices = 1, .precision = "16-mixed"});
  fabric.launch();
  torch::nn::Linear model(4, 4);
  auto [net, optimizer] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-1}));
  fabric.grad_scaler()->load_state_dict({{"scale", 1024.0},
                                         {"growth_factor", 2.0},
                                         {"backoff_factor", 0.5},
                                         {"growth_interval", 2},
                                         {"_growth_tracker", 0}});
  const auto before = model->weight.clone();
  fabric.backward(net(torch::full({1, 4}, 1e30, at::device(at::kCUDA))).sum() * 1e30);
  optimizer.step();
  EXPECT_EQ(fabric.grad_scaler()->current_scale(), 512);
  EXPECT_TRUE(torch::equal(before, model->weight));
  optimizer.zero_grad();
  for (int i = 0; i < 2; ++i) {
    fabric.backward(net(torch::ones({1, 4}, at::device(at::kCUDA))).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_EQ(fabric.grad_scaler()->current_scale(), 1024);
  EXPECT_FALSE(torch::equal(before, model->weight));
}

TEST_F(FabricGpu, MetaInitAllocatesOnlyTheModel) {
  Fabric fabric({.accelerator = "cuda", .devices = 1, .precision = "bf16-true"});
  fabric.launch();
  const auto& device = fabric.accelerator();
  auto model = fabric.init_module([] { return models::vit_b_16(); }, {.meta = true});
  const auto before = device.memory(fabric.device()).allocated;
  auto net = fabric.setup(model);
  const auto held = device.memory(fabric.device()).allocated - before;
  int64_t bytes = 0;
  for (const auto& p : model->parameters()) bytes += p.nbytes();
  EXPECT_NEAR(static_cast<double>(held), static_cast<double>(bytes), 0.05 * bytes);  // the allocator rounds blocks up
  torch::NoGradGuard no_grad;
  EXPECT_TRUE(net(torch::randn({1, 3, 224, 224}, at::device(at::kCUDA))).isfinite().all().item<bool>());
}

TEST_F(FabricGpu, RngStateGoesRoundTrip) {
  const auto& cuda = accelerator("cuda");
  const c10::Device device(at::kCUDA, 0);
  const auto state = cuda.rng_state(device);
  const auto first = torch::rand({8}, device);
  cuda.set_rng_state(device, state);
  EXPECT_TRUE(torch::equal(first, torch::rand({8}, device)));
  EXPECT_FALSE(cuda.info(device).name.empty());
}

}  // namespace
}  // namespace levin
