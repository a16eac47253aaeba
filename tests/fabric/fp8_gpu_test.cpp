#include <gtest/gtest.h>

#include "levin/levin.h"

namespace levin {
namespace {

double fp8_vit_loss(const char* precision, bool* in_fp8 = nullptr) {
  Fabric fabric({.accelerator = "cuda", .devices = 1, .precision = precision});
  fabric.launch();
  torch::manual_seed(0);
  auto model = fabric.init_module([] {
    return models::vit({.image_size = 32,
                        .patch_size = 8,
                        .num_layers = 4,
                        .num_heads = 4,
                        .hidden_dim = 128,
                        .mlp_dim = 512,
                        .num_classes = 10});
  });
  auto [net, optimizer] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 5e-4}));
  const auto x = fabric.to_device(torch::randn({64, 3, 32, 32}));
  const auto y = fabric.to_device(torch::randint(0, 10, {64}));
  double sum = 0;
  for (int step = 0; step < 100; ++step) {
    const auto loss = cross_entropy(net(x), y);
    fabric.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (step < 20) sum += loss.item<double>();
    if (step == 99) {
      EXPECT_LT(loss.item<double>(), 0.1) << precision;
    }
  }
  if (in_fp8) *in_fp8 = net.setup_call().fp8 && net.setup_call().fp8->history().defined();
  return sum / 20;
}

TEST(Fp8MixedGpu, TrainsAVitAsInBfloat16) {
  if (!accelerator("cuda").info(c10::Device(at::kCUDA, 0)).has_fp8) {
    EXPECT_THROW(fp8_vit_loss("fp8-mixed"), Error);
    return;
  }
  bool in_fp8 = false;
  EXPECT_NEAR(fp8_vit_loss("fp8-mixed", &in_fp8) / fp8_vit_loss("bf16-mixed"), 1, 0.05);
  EXPECT_TRUE(in_fp8);
}

}  // namespace
}  // namespace levin
