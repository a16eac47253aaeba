// What a training step will take, against what it takes.
#include "levin/strategies/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/devices/memory_counter.h"
#include "levin/models/registry.h"
#include "levin/models/vit.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/functional.h"
#include "levin/nn/layers.h"
#include "levin/optim/adam.h"
#include "levin/optim/sgd.h"
#include "levin/strategies/sharding_options.h"

namespace levin {
namespace {

using ::testing::HasSubstr;

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t width, int64_t depth = 2) {
    for (int64_t i = 0; i < depth; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(width, width)));
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = torch::relu(layer(x));
    return x;
  }
  std::vector<nn::Linear> layers;
};
LEVIN_MODULE(Mlp);

models::VisionTransformer small_vit() {
  return models::vit({.image_size = 64,
                      .patch_size = 8,
                      .num_layers = 4,
                      .num_heads = 4,
                      .hidden_dim = 128,
                      .mlp_dim = 512,
                      .num_classes = 10});
}

const auto kForward = [](auto& model, const Batch& batch) { return model(batch["x"]); };
const auto kClasses = [](const Tensor& logits, const Batch& batch) { return cross_entropy(logits, batch["y"]); };

Batch images(int64_t count, c10::Device device = at::kMeta) {
  return {{"x", torch::zeros({count, 3, 64, 64}, device)},
          {"y", torch::zeros({count}, torch::dtype(at::kLong).device(device))}};
}
Batch rows(int64_t count, int64_t width, c10::Device device = at::kMeta) {
  return {{"x", torch::zeros({count, width}, device)},
          {"y", torch::zeros({count}, torch::dtype(at::kLong).device(device))}};
}

/// Peak and bytes at the end of the second step, on the CPU.
struct Measured {
  int64_t peak, after;
};
template <class Make>
Measured measure(Make make, const std::function<Batch()>& data, const MemoryQuestion& question) {
  const MemoryCounter counter_before_all;
  auto& counter = const_cast<MemoryCounter&>(counter_before_all);
  const auto plan = resolve_precision(question.precision, at::kCPU);
  auto model = init_module(make, {.dtype = plan.params});
  const auto batch = data();
  auto optimizer =
      question.optimizer == "adam"
          ? Optimizer(optim::Adam(model->parameters()))
          : Optimizer(optim::SGD(model->parameters(), {.momentum = question.optimizer == "sgd_momentum" ? 0.9 : 0.0}));
  for (int step = 0; step < 2; ++step) {
    counter.reset_peak();
    for (int pass = 0; pass < question.accumulate; ++pass) {
      Tensor loss;
      {
        Tensor out;
        {
          std::optional<Autocast> autocast;
          if (plan.autocast) autocast.emplace(at::kCPU, *plan.autocast);
          Batch cast = batch;
          if (plan.inputs) cast["x"] = batch["x"].to(*plan.inputs);
          out = kForward(model, cast);
        }
        if (plan.outputs) out = out.to(*plan.outputs);
        loss = kClasses(out, batch);
      }
      loss.backward();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return {counter.peak(), counter.allocated()};
}

void expect_near(int64_t predicted, int64_t measured, double part) {
  EXPECT_NEAR(static_cast<double>(predicted) / static_cast<double>(measured), 1.0, part)
      << "predicted " << predicted << ", measured " << measured;
}

TEST(Memory, OfAnMlpIsAsCountedByHand) {
  const int64_t n = 64, w = 256;
  const auto estimate = estimate_memory([] { return Mlp(256); }, kForward, kClasses, rows(n, w),
                                        {.optimizer = "adam", .device = at::kCPU});
  const int64_t params = 2 * (w * w + w);
  EXPECT_EQ(estimate.num_parameters, params);
  EXPECT_EQ(estimate.parameters, 4 * params);
  EXPECT_EQ(estimate.gradients, 4 * params);
  EXPECT_EQ(estimate.optimizer, 8 * params + 4 * 4);
  // What relu gives, twice (the first is the second layer's input too), logarithms of probabilities, the loss and the
  // sum of its weights.
  EXPECT_EQ(estimate.activations, 3 * 4 * n * w + 4 + 4);
  EXPECT_EQ(estimate.host, 0);
  EXPECT_EQ(estimate.peak_part, StepPart::kBackward);
}

TEST(Memory, OfARunOnTheCpuIsForeseen) {
  for (const char* precision : {"32-true", "bf16-true", "bf16-mixed"})
    for (const char* optimizer : {"adam", "sgd", "sgd_momentum"})
      for (const int accumulate : {1, 2}) {
        SCOPED_TRACE(std::string(precision) + " " + optimizer + " " + std::to_string(accumulate));
        const MemoryQuestion question{
            .precision = precision, .optimizer = optimizer, .device = at::kCPU, .accumulate = accumulate};
        const auto vit = measure(
            small_vit, [] { return images(8, at::kCPU); }, question);
        const auto foreseen = estimate_memory(small_vit, kForward, kClasses, images(8), question);
        expect_near(foreseen.device_peak, vit.peak, 0.05);
        const auto mlp = measure([] { return Mlp(256, 4); }, [] { return rows(512, 256, at::kCPU); }, question);
        const auto mlp_foreseen =
            estimate_memory([] { return Mlp(256, 4); }, kForward, kClasses, rows(512, 256), question);
        expect_near(mlp_foreseen.device_peak, mlp.peak, 0.05);
        printf("%s %s %d: vit %.4f mlp %.4f\n", precision, optimizer, accumulate,
               (double)foreseen.device_peak / vit.peak, (double)mlp_foreseen.device_peak / mlp.peak);
      }
}

}  // namespace
}  // namespace levin
