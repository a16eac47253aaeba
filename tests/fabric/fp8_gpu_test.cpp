#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/testing/gpu.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

class Fp8MixedGpu : public testing::GpuTest {};

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

TEST_F(Fp8MixedGpu, TrainsAVitAsInBfloat16) {
  if (!accelerator("cuda").info(c10::Device(at::kCUDA, 0)).has_fp8) {
    EXPECT_THROW(fp8_vit_loss("fp8-mixed"), Error);
    return;
  }
  bool in_fp8 = false;
  EXPECT_NEAR(fp8_vit_loss("fp8-mixed", &in_fp8) / fp8_vit_loss("bf16-mixed"), 1, 0.05);
  EXPECT_TRUE(in_fp8);
}

/// Losses of a small ViT, and its float8 state; it saves after ten steps, or begins there.
struct Fp8GpuRun {
  std::vector<float> losses;
  Tensor state;
  int64_t replayed = 0;
};
Fp8GpuRun fp8_gpu_run(bool compile, const std::string& save = "", const std::string& resume = "") {
  Fabric fabric({.accelerator = "cuda",
                 .devices = 1,
                 .precision = "fp8-mixed",
                 .compile = compile ? CompileMode("graph") : CompileMode()});
  fabric.launch();
  torch::manual_seed(resume.empty() ? 0 : 1);
  auto model = fabric.init_module([] {
    return models::vit({.image_size = 32,
                        .patch_size = 8,
                        .num_layers = 3,
                        .num_heads = 4,
                        .hidden_dim = 128,
                        .mlp_dim = 512,
                        .num_classes = 10});
  });
  auto [net, optimizer] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 5e-4}));
  auto step = fabric.compile([&fabric, net = net, opt = optimizer](Batch& batch) mutable {
    auto loss = cross_entropy(net(batch["x"]), batch["y"]);
    fabric.backward(loss);
    opt.step();
    opt.zero_grad();
    return loss;
  });
  int64_t done = 0;
  const State state{{"model", model}, {"optimizer", optimizer}, {"done", done}};
  if (!resume.empty()) fabric.load(resume, state);
  Fp8GpuRun run;
  for (; done < 30; ++done) {
    if (done == 10 && !save.empty()) fabric.save(save, state);
    torch::manual_seed(50 + done);
    Batch batch{{"x", fabric.to_device(torch::randn({48, 3, 32, 32}))},
                {"y", fabric.to_device(torch::randint(0, 10, {48}))}};
    run.losses.push_back(step(batch).item<float>());
  }
  run.state = net.setup_call().fp8->state();
  if (step.compiler()) run.replayed = step.compiler()->counts().replayed;
  return run;
}

TEST_F(Fp8MixedGpu, CompiledAndResumedStepsAreTheSameToTheBit) {
  if (!accelerator("cuda").info(c10::Device(at::kCUDA, 0)).has_fp8) GTEST_SKIP() << "no products in float8";
  const testing::TemporaryFolder folder;
  const auto path = (folder.path() / "ten").string();
  const auto eager = fp8_gpu_run(false, path), compiled = fp8_gpu_run(true);
  EXPECT_EQ(eager.losses, compiled.losses);
  EXPECT_TRUE(eager.state.equal(compiled.state));
  EXPECT_GT(compiled.replayed, 20);
  for (const bool compile : {false, true}) {
    const auto resumed = fp8_gpu_run(compile, "", path);
    EXPECT_EQ(resumed.losses, std::vector<float>(eager.losses.begin() + 10, eager.losses.end())) << compile;
    EXPECT_TRUE(resumed.state.equal(eager.state)) << compile;
  }
}

}  // namespace
}  // namespace levin
