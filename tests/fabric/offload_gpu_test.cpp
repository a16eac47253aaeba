// Offloaded, checkpointed blocks on a GPU: the peak of a step is the predicted one, and losses are those without
// offload.
#include <cstdio>

#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/memory/estimate.h"
#include "levin/strategies/options.h"
#include "levin/testing/gpu.h"

namespace levin::testing {
namespace {

models::VisionTransformer small_vit() {
  return models::vit({.image_size = 224,
                      .patch_size = 16,
                      .num_layers = 5,
                      .num_heads = 16,
                      .hidden_dim = 1024,
                      .mlp_dim = 4096,
                      .num_classes = 10});
}

struct OffloadRun {
  std::vector<double> losses;
  double peak = 0, predicted = 0;
};

OffloadRun train_on_gpu(const FsdpOptions& options) {
  constexpr int64_t kBatch = 8;
  OffloadRun run;
  Fabric fabric({.accelerator = "cuda", .strategy = options, .devices = 1, .precision = "bf16-true"});
  fabric.launch();
  torch::manual_seed(0);
  auto model = small_vit();
  auto [net, optimizer] = fabric.setup(model, Optimizer(optim::SGD(model->parameters(), {.lr = 0.01})));
  const auto images = torch::randn({kBatch, 3, 224, 224}).to(fabric.device());
  const auto labels = torch::arange(kBatch, at::TensorOptions(fabric.device()).dtype(at::kLong));
  const auto& device = fabric.accelerator();
  for (int step = 0; step < 6; ++step) {
    if (step == 3) {
      device.empty_cache(fabric.device());  // what other tests have left in libraries
      device.reset_peak_memory(fabric.device());
    }
    auto loss = cross_entropy(net(images), labels);
    fabric.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    run.losses.push_back(loss.item<double>());
  }
  run.peak = static_cast<double>(device.memory(fabric.device()).peak_allocated);
  const Batch batch{{"image", images}, {"label", labels}};
  const auto estimate = fabric.strategy().estimate(
      small_vit, [](auto& vit, const Batch& given) { return vit(given["image"]); },
      [](const Tensor& logits, const Batch& given) { return cross_entropy(logits, given["label"]); }, batch,
      MemoryQuestion{.precision = "bf16-true", .optimizer = "sgd"});
  run.predicted = static_cast<double>(estimate.device_peak);
  return run;
}

class OffloadGpu : public GpuTest {};

TEST_F(OffloadGpu, TakesThePredictedMemoryAndChangesNoLoss) {
  const auto blocks = policy::by_class<models::EncoderBlock>();
  const FsdpOptions plain{.auto_wrap_policy = blocks, .activation_checkpointing_policy = blocks};
  auto offload = plain, stepped = plain;
  offload.cpu_offload = stepped.cpu_offload = stepped.optimizer_in_backward = true;
  const auto reference = train_on_gpu(plain), at_the_end = train_on_gpu(offload), in_backward = train_on_gpu(stepped);
  EXPECT_LT(reference.losses.back(), reference.losses.front());
  for (const auto* run : {&at_the_end, &in_backward}) {
    std::printf("[ MEMORY   ] %.1f MB, predicted %.1f MB, on the device %.1f MB\n", run->peak / 1e6,
                run->predicted / 1e6, reference.peak / 1e6);
    EXPECT_NEAR(run->peak / run->predicted, 1, 0.03);
    EXPECT_LT(run->peak, reference.peak / 1.3);
    ASSERT_EQ(run->losses.size(), reference.losses.size());
    for (size_t i = 0; i < run->losses.size(); ++i)
      EXPECT_NEAR(run->losses[i], reference.losses[i], 0.02 * reference.losses[i]) << "step " << i;
  }
}

}  // namespace
}  // namespace levin::testing
